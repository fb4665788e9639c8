/* Rows of SQL as a pool to select from: what the aggregates and the tables share. */
#ifndef RK_SQLITE_POOL_H
#define RK_SQLITE_POOL_H

#include <sqlite3ext.h>

#include "ragsys_kernels.h"

/* Arguments of a selection, NULL where they were not given. VRSD takes the first three. */
enum { QUERY, K, METRIC, LAMBDA_D, LAMBDA_B, ARGUMENTS };

typedef struct Pool {
  const char* op; /* "mmr" or "vrsd" */
  char* error;    /* what went wrong, of sqlite3_malloc; NULL is want of memory */
  float* query;
  int columns;
  int64_t k;
  rk_select_options options;
  sqlite3_int64 rows, capacity;
  sqlite3_int64 biased; /* rows that came with a bias: none, or all */
  float* vectors;       /* (rows, columns) */
  float* bias;          /* (rows,) */
  sqlite3_value** ids;  /* (rows,) */
  sqlite3_int64 picked;
  int64_t* indices; /* (picked,), and so are the next three */
  float *scores, *relevance, *redundancy;
} Pool;

/* Each gives SQLITE_OK or SQLITE_ERROR, and then Pool.error says why. */
int pool_begin(Pool* pool, const char* op, sqlite3_value* const* arguments);
/* A row without a vector is left out, as SQL's aggregates leave out NULL. */
int pool_add(Pool* pool, sqlite3_value* id, sqlite3_value* vector, sqlite3_value* bias);
int pool_select(Pool* pool);
int pool_fail(Pool* pool, const char* format, ...);
void pool_clear(Pool* pool);

int rk_register_aggregates(sqlite3* db);
int rk_register_tables(sqlite3* db);

#endif
