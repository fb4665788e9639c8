/* rk_mmr(source, vectors, query, k, ...) and rk_vrsd(...) as tables: the picks from a table or view, with their scores.
 */
#include <string.h>

#include "pool.h"

SQLITE_EXTENSION_INIT3

/* What a table shows; then come the columns that are arguments. */
enum { RANK, ID, SCORE, RELEVANCE, REDUNDANCY, SHOWN };
/* Arguments beside those of the pool. */
enum { SOURCE = ARGUMENTS, VECTORS, BIAS, KEY, HIDDEN };

#define SHOWN_COLUMNS "CREATE TABLE x(rank INTEGER, id, score REAL, relevance REAL, redundancy REAL, "
static const struct Rule {
  const char *op, *schema;
  int columns;
  int arguments[HIDDEN];
} rules[] = {
    {"mmr",
     SHOWN_COLUMNS "source HIDDEN, vectors HIDDEN, query HIDDEN, k HIDDEN, lambda_d HIDDEN, bias HIDDEN, "
                   "lambda_b HIDDEN, metric HIDDEN, \"key\" HIDDEN)",
     9,
     {SOURCE, VECTORS, QUERY, K, LAMBDA_D, BIAS, LAMBDA_B, METRIC, KEY}},
    {"vrsd",
     SHOWN_COLUMNS "source HIDDEN, vectors HIDDEN, query HIDDEN, k HIDDEN, metric HIDDEN, \"key\" HIDDEN)",
     6,
     {SOURCE, VECTORS, QUERY, K, METRIC, KEY}},
};

typedef struct Table {
  sqlite3_vtab base;
  sqlite3* db;
  const struct Rule* rule;
} Table;

typedef struct Cursor {
  sqlite3_vtab_cursor base;
  Pool pool;
  sqlite3_value* given[HIDDEN]; /* NULL: not given */
  sqlite3_int64 row;
} Cursor;

static int table_connect(sqlite3* db, void* rule, int argc, const char* const* argv, sqlite3_vtab** out, char** error) {
  (void)argc, (void)argv, (void)error;
  const int status = sqlite3_declare_vtab(db, ((const struct Rule*)rule)->schema);
  if (status != SQLITE_OK) return status;
  Table* const table = sqlite3_malloc64(sizeof *table);
  if (!table) return SQLITE_NOMEM;
  memset(table, 0, sizeof *table);
  table->db = db;
  table->rule = rule;
  *out = &table->base;
  return SQLITE_OK;
}

static int table_disconnect(sqlite3_vtab* table) {
  sqlite3_free(table);
  return SQLITE_OK;
}

/* Every argument that is given is asked for, in the order of the columns; idxNum has a bit for each. */
static int table_best_index(sqlite3_vtab* base, sqlite3_index_info* info) {
  const struct Rule* const rule = ((Table*)base)->rule;
  int used = 0;
  info->idxNum = 0;
  for (int column = 0; column < rule->columns; ++column)
    for (int i = 0; i < info->nConstraint; ++i) {
      if (info->aConstraint[i].iColumn != SHOWN + column || info->aConstraint[i].op != SQLITE_INDEX_CONSTRAINT_EQ)
        continue;
      if (!info->aConstraint[i].usable) return SQLITE_CONSTRAINT; /* other orders of the join have it */
      if (info->idxNum & 1 << column) continue;                   /* SQLite compares it with the column */
      info->idxNum |= 1 << column;
      info->aConstraintUsage[i].argvIndex = ++used;
      info->aConstraintUsage[i].omit = 1;
    }
  /* It reads a table: not to be done for each row of another one. */
  info->estimatedCost = 1e9;
  info->estimatedRows = 10;
  return SQLITE_OK;
}

static int cursor_open(sqlite3_vtab* table, sqlite3_vtab_cursor** out) {
  (void)table;
  Cursor* const cursor = sqlite3_malloc64(sizeof *cursor);
  if (!cursor) return SQLITE_NOMEM;
  memset(cursor, 0, sizeof *cursor);
  *out = &cursor->base;
  return SQLITE_OK;
}

static void cursor_clear(Cursor* cursor) {
  pool_clear(&cursor->pool);
  for (int i = 0; i < HIDDEN; ++i) sqlite3_value_free(cursor->given[i]);
  memset(cursor->given, 0, sizeof cursor->given);
  cursor->row = 0;
}

static int cursor_close(sqlite3_vtab_cursor* base) {
  cursor_clear((Cursor*)base);
  sqlite3_free(base);
  return SQLITE_OK;
}

static const char* text_of(sqlite3_value* value) { return value ? (const char*)sqlite3_value_text(value) : NULL; }

/* A source may be a view with a selection of its own, and so read itself, which SQLite cannot see. How many selections
 * of this thread read their sources; each holds less than 1 KB of the stack (SQLite 3.40, GCC 12), where SQLite was
 * built to be debugged a few. */
enum { DEEPEST = 8 };
static _Thread_local int depth;

/* An error of a selection within the source, which needs no more words. */
static int is_of_selection(const char* error) { return !strncmp(error, "mmr: ", 5) || !strncmp(error, "vrsd: ", 6); }

/* The rows of the source into the pool. */
static int read_source(Cursor* cursor, sqlite3* db) {
  static const char* const names[] = {"source", "vectors"};
  Pool* const pool = &cursor->pool;
  for (int i = 0; i < 2; ++i)
    if (!text_of(cursor->given[SOURCE + i])) return pool_fail(pool, "%s must be given", names[i]);
  const char* const key = text_of(cursor->given[KEY]);
  const char* const bias = text_of(cursor->given[BIAS]);
  if (depth == DEEPEST)
    return pool_fail(pool, "source must be read by at most %d selections within each other, got one more", DEEPEST);
  /* With the table before it a name in quotes is never taken for a text. */
  char* const sql = sqlite3_mprintf("SELECT s.\"%w\", s.\"%w\"%s%w%s FROM \"%w\" AS s", key ? key : "rowid",
                                    text_of(cursor->given[VECTORS]), bias ? ", s.\"" : ", NULL", bias ? bias : "",
                                    bias ? "\"" : "", text_of(cursor->given[SOURCE]));
  sqlite3_stmt* rows = NULL;
  int status = sql ? sqlite3_prepare_v2(db, sql, -1, &rows, NULL) : SQLITE_NOMEM;
  sqlite3_free(sql);
  if (status != SQLITE_OK)
    return pool_fail(pool, "source must be a table or view with the columns named, got \"%s\"", sqlite3_errmsg(db));
  /* The connection's mutex is held, so that the values of columns may be read. */
  while (++depth, status = sqlite3_step(rows), --depth, status == SQLITE_ROW) {
    sqlite3_value* const id = sqlite3_column_value(rows, 0);
    if (!key && sqlite3_value_type(id) == SQLITE_NULL)
      status = pool_fail(pool, "key must name the column of ids where rows have no rowid, got none");
    else
      status = pool_add(pool, id, sqlite3_column_value(rows, 1), sqlite3_column_value(rows, 2));
    if (status != SQLITE_OK) {
      sqlite3_finalize(rows);
      return SQLITE_ERROR;
    }
  }
  const char* const error = sqlite3_errmsg(db);
  if (status != SQLITE_DONE && is_of_selection(error))
    pool->error = sqlite3_mprintf("%s", error);
  else if (status != SQLITE_DONE)
    pool_fail(pool, "source must be read, got \"%s\"", error);
  sqlite3_finalize(rows);
  return status == SQLITE_DONE ? SQLITE_OK : SQLITE_ERROR;
}

static int cursor_filter(sqlite3_vtab_cursor* base, int given, const char* unused, int argc, sqlite3_value** argv) {
  (void)unused, (void)argc;
  Cursor* const cursor = (Cursor*)base;
  Table* const table = (Table*)base->pVtab;
  cursor_clear(cursor);
  for (int column = 0, at = 0; column < table->rule->columns; ++column) {
    if (!(given & 1 << column)) continue;
    sqlite3_value* const value = argv[at++];
    if (sqlite3_value_type(value) == SQLITE_NULL) continue;
    sqlite3_value** const to = &cursor->given[table->rule->arguments[column]];
    if (!(*to = sqlite3_value_dup(value))) return SQLITE_NOMEM;
  }
  Pool* const pool = &cursor->pool;
  if (pool_begin(pool, table->rule->op, cursor->given) == SQLITE_OK && read_source(cursor, table->db) == SQLITE_OK &&
      pool_select(pool) == SQLITE_OK)
    return SQLITE_OK;
  if (!pool->error) return SQLITE_NOMEM;
  sqlite3_free(base->pVtab->zErrMsg);
  base->pVtab->zErrMsg = pool->error;
  pool->error = NULL;
  pool->picked = 0;
  return SQLITE_ERROR;
}

static int cursor_next(sqlite3_vtab_cursor* base) {
  ++((Cursor*)base)->row;
  return SQLITE_OK;
}

static int cursor_eof(sqlite3_vtab_cursor* base) { return ((Cursor*)base)->row >= ((Cursor*)base)->pool.picked; }

static int cursor_column(sqlite3_vtab_cursor* base, sqlite3_context* to, int column) {
  const Cursor* const cursor = (const Cursor*)base;
  const Pool* const pool = &cursor->pool;
  if (column >= SHOWN) {
    sqlite3_value* const value = cursor->given[((Table*)base->pVtab)->rule->arguments[column - SHOWN]];
    if (value) sqlite3_result_value(to, value);
  } else if (column == RANK) {
    sqlite3_result_int64(to, cursor->row + 1);
  } else if (column == ID) {
    sqlite3_result_value(to, pool->ids[pool->indices[cursor->row]]);
  } else {
    const float* const values[] = {pool->scores, pool->relevance, pool->redundancy};
    sqlite3_result_double(to, values[column - SCORE][cursor->row]);
  }
  return SQLITE_OK;
}

static int cursor_rowid(sqlite3_vtab_cursor* base, sqlite3_int64* out) {
  *out = ((Cursor*)base)->row + 1;
  return SQLITE_OK;
}

int rk_register_tables(sqlite3* db) {
  static const sqlite3_module module = {.xConnect = table_connect,
                                        .xBestIndex = table_best_index,
                                        .xDisconnect = table_disconnect,
                                        .xOpen = cursor_open,
                                        .xClose = cursor_close,
                                        .xFilter = cursor_filter,
                                        .xNext = cursor_next,
                                        .xEof = cursor_eof,
                                        .xColumn = cursor_column,
                                        .xRowid = cursor_rowid};
  const int status = sqlite3_create_module_v2(db, "rk_mmr", &module, (void*)&rules[0], NULL);
  return status == SQLITE_OK ? sqlite3_create_module_v2(db, "rk_vrsd", &module, (void*)&rules[1], NULL) : status;
}
