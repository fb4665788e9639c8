/* rk_mmr(id, vector, query, k [, lambda_d [, bias [, lambda_b [, metric]]]]) and rk_vrsd(id, vector, query, k [,
 * metric]) give the ids of the picks as a JSON array, the best first. */
#include <string.h>

#include "pool.h"

SQLITE_EXTENSION_INIT3

typedef struct Aggregate {
  int failed;
  Pool pool;
  sqlite3_value* first[ARGUMENTS]; /* as they were in the first row */
} Aggregate;

static const char* const names[] = {"query", "k", "metric", "lambda_d", "lambda_b"};

/* Which column of the call an argument is; -1: it has none. */
static int column_of(const char* op, int argument) {
  static const int mmr[] = {2, 3, 7, 4, 6}, vrsd[] = {2, 3, 4, -1, -1};
  return (strcmp(op, "mmr") == 0 ? mmr : vrsd)[argument];
}

static int same(sqlite3_value* a, sqlite3_value* b) {
  const int type = sqlite3_value_type(a);
  if (type != sqlite3_value_type(b)) return 0;
  if (type == SQLITE_NULL) return 1;
  if (type == SQLITE_INTEGER) return sqlite3_value_int64(a) == sqlite3_value_int64(b);
  if (type == SQLITE_FLOAT) return sqlite3_value_double(a) == sqlite3_value_double(b);
  const void* const x = sqlite3_value_blob(a);
  const void* const y = sqlite3_value_blob(b);
  const int bytes = sqlite3_value_bytes(a);
  return bytes == sqlite3_value_bytes(b) && (!bytes || memcmp(x, y, (size_t)bytes) == 0);
}

static int add_row(Aggregate* state, const char* op, int count, sqlite3_value** values) {
  sqlite3_value* arguments[ARGUMENTS];
  for (int i = 0; i < ARGUMENTS; ++i) {
    const int at = column_of(op, i);
    arguments[i] = at >= 0 && at < count ? values[at] : NULL;
    if (!arguments[i]) continue;
    if (state->pool.op && !same(arguments[i], state->first[i]))
      return pool_fail(&state->pool, "%s must be the same in every row, got two", names[i]);
    if (!state->pool.op && !(state->first[i] = sqlite3_value_dup(arguments[i]))) return SQLITE_ERROR;
  }
  if (!state->pool.op && pool_begin(&state->pool, op, arguments)) return SQLITE_ERROR;
  return pool_add(&state->pool, values[0], values[1], strcmp(op, "mmr") == 0 && count > 5 ? values[5] : NULL);
}

static void fail(sqlite3_context* context, const Pool* pool) {
  if (pool->error)
    sqlite3_result_error(context, pool->error, -1);
  else
    sqlite3_result_error_nomem(context);
}

static void step(sqlite3_context* context, int count, sqlite3_value** values) {
  Aggregate* const state = sqlite3_aggregate_context(context, sizeof *state);
  if (!state) {
    sqlite3_result_error_nomem(context);
  } else if (!state->failed && add_row(state, sqlite3_user_data(context), count, values)) {
    state->failed = 1;
    fail(context, &state->pool);
  }
}

static void append_json(sqlite3_str* to, sqlite3_value* id) {
  if (sqlite3_value_type(id) == SQLITE_INTEGER) {
    sqlite3_str_appendf(to, "%lld", sqlite3_value_int64(id));
    return;
  }
  const unsigned char* at = sqlite3_value_text(id);
  sqlite3_str_appendchar(to, 1, '"');
  for (; at && *at; ++at) {
    if (*at == '"' || *at == '\\')
      sqlite3_str_appendf(to, "\\%c", *at);
    else if (*at < 0x20)
      sqlite3_str_appendf(to, "\\u%04x", *at);
    else
      sqlite3_str_appendchar(to, 1, (char)*at);
  }
  sqlite3_str_appendchar(to, 1, '"');
}

static void final(sqlite3_context* context) {
  Aggregate* const state = sqlite3_aggregate_context(context, 0);
  if (!state) {
    sqlite3_result_text(context, "[]", -1, SQLITE_STATIC);
    return;
  }
  if (!state->failed && pool_select(&state->pool)) state->failed = 1;
  if (state->failed) {
    fail(context, &state->pool);
  } else {
    sqlite3_str* const json = sqlite3_str_new(sqlite3_context_db_handle(context));
    for (sqlite3_int64 i = 0; i < state->pool.picked; ++i) {
      sqlite3_str_appendchar(json, 1, i ? ',' : '[');
      append_json(json, state->pool.ids[state->pool.indices[i]]);
    }
    sqlite3_str_appendall(json, state->pool.picked ? "]" : "[]");
    char* const text = sqlite3_str_finish(json);
    if (text)
      sqlite3_result_text(context, text, -1, sqlite3_free);
    else
      sqlite3_result_error_nomem(context);
  }
  for (int i = 0; i < ARGUMENTS; ++i) sqlite3_value_free(state->first[i]);
  pool_clear(&state->pool);
}

int rk_register_aggregates(sqlite3* db) {
  static const struct {
    const char *name, *op;
    int least, most;
  } functions[] = {{"rk_mmr", "mmr", 4, 8}, {"rk_vrsd", "vrsd", 4, 5}};
  for (int f = 0; f < 2; ++f)
    for (int count = functions[f].least; count <= functions[f].most; ++count) {
      const int status = sqlite3_create_function_v2(db, functions[f].name, count,
                                                    SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS,
                                                    (void*)functions[f].op, NULL, step, final, NULL);
      if (status != SQLITE_OK) return status;
    }
  return SQLITE_OK;
}
