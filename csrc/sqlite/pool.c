#include "pool.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

SQLITE_EXTENSION_INIT3

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "vectors are little-endian float32"
#endif

int pool_fail(Pool* pool, const char* format, ...) {
  va_list values;
  sqlite3_free(pool->error);
  va_start(values, format);
  char* what = sqlite3_vmprintf(format, values);
  va_end(values);
  pool->error = what ? sqlite3_mprintf("%s: %s", pool->op, what) : NULL;
  sqlite3_free(what);
  return SQLITE_ERROR;
}

static int out_of_memory(Pool* pool) {
  sqlite3_free(pool->error);
  pool->error = NULL;
  return SQLITE_ERROR;
}

void pool_clear(Pool* pool) {
  for (sqlite3_int64 i = 0; i < pool->rows; ++i) sqlite3_value_free(pool->ids[i]);
  void* const owned[] = {pool->error,   pool->query,  pool->vectors,   pool->bias,      pool->ids,
                         pool->indices, pool->scores, pool->relevance, pool->redundancy};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; ++i) sqlite3_free(owned[i]);
  memset(pool, 0, sizeof *pool);
}

/* A value for an error, of sqlite3_malloc. */
static char* shown(sqlite3_value* value) {
  switch (sqlite3_value_type(value)) {
    case SQLITE_NULL:
      return sqlite3_mprintf("NULL");
    case SQLITE_BLOB:
      return sqlite3_mprintf("a blob of %d bytes", sqlite3_value_bytes(value));
    case SQLITE_TEXT:
      return sqlite3_mprintf("'%.40s'", sqlite3_value_text(value));
    default:
      return sqlite3_mprintf("%s", sqlite3_value_text(value));
  }
}

/* `<name> must <rule>, got <value>`, and where. */
static int refuse(Pool* pool, const char* name, const char* rule, sqlite3_value* got, sqlite3_value* id) {
  char* value = shown(got);
  char* at = id ? shown(id) : NULL;
  const int status = id ? pool_fail(pool, "%s must %s, got %s in the row with id %s", name, rule, value, at)
                        : pool_fail(pool, "%s must %s, got %s", name, rule, value);
  sqlite3_free(value);
  sqlite3_free(at);
  return status;
}

static const char* after_space(const char* at) {
  while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r') ++at;
  return at;
}

/* Numbers of a JSON array, at most `room` of them stored; -1 where it is none. */
static int parse_numbers(const char* at, float* to, int room) {
  int found = 0;
  at = after_space(at);
  if (*at++ != '[') return -1;
  at = after_space(at);
  if (*at == ']') return *after_space(at + 1) ? -1 : 0;
  for (;; at = after_space(at + 1), ++found) {
    char* end;
    if (*at != '-' && (*at < '0' || *at > '9')) return -1;
    const double x = strtod(at, &end);
    if (end > at + strspn(at, "+-.0123456789eE")) return -1; /* strtod knows more than numbers: 0x10, -inf */
    if (found < room) to[found] = (float)x;
    at = after_space(end);
    if (*at == ']') return *after_space(at + 1) ? -1 : found + 1;
    if (*at != ',') return -1;
  }
}

/* strtod takes the decimal point of the locale, which the program may have set: [0,5] would be one number of two. */
static int parse_json(const char* at, float* to, int room) {
  const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!plain) return -1;
  const locale_t before = uselocale(plain);
  const int found = parse_numbers(at, to, room);
  uselocale(before);
  freelocale(plain);
  return found;
}

/* How many numbers a vector has, of which at most `room` are stored; -1 where it is no vector. */
static int parse_vector(sqlite3_value* value, float* to, int room) {
  const int type = sqlite3_value_type(value);
  if (type == SQLITE_TEXT) {
    const char* text = (const char*)sqlite3_value_text(value);
    return text ? parse_json(text, to, room) : -1;
  }
  const int bytes = type == SQLITE_BLOB ? sqlite3_value_bytes(value) : 1;
  if (bytes % (int)sizeof *to) return -1;
  const int found = bytes / (int)sizeof *to;
  if (found && room) memcpy(to, sqlite3_value_blob(value), sizeof *to * (size_t)(found < room ? found : room));
  return found;
}

static const char vector_rule[] = "be a blob of float32 or a JSON array of numbers";

static int is_number(sqlite3_value* value) {
  return sqlite3_value_type(value) == SQLITE_INTEGER || sqlite3_value_type(value) == SQLITE_FLOAT;
}

static int given(sqlite3_value* value) { return value && sqlite3_value_type(value) != SQLITE_NULL; }

static int read_weight(Pool* pool, const char* name, sqlite3_value* value, double* to) {
  if (!given(value)) return SQLITE_OK;
  const double x = is_number(value) ? sqlite3_value_double(value) : -1;
  if (!(x >= 0 && x <= 1)) return refuse(pool, name, "be a number within [0, 1]", value, NULL);
  *to = x;
  return SQLITE_OK;
}

int pool_begin(Pool* pool, const char* op, sqlite3_value* const* arguments) {
  memset(pool, 0, sizeof *pool);
  pool->op = op;
  for (int i = QUERY; i <= K; ++i)
    if (!arguments[i]) return pool_fail(pool, "%s must be given", i == K ? "k" : "query");
  rk_select_options_init(&pool->options);
  if (strcmp(op, "mmr") == 0) pool->options.lambda_d = 0.75, pool->options.lambda_b = 0.95; /* as in Python */
  if (read_weight(pool, "lambda_d", arguments[LAMBDA_D], &pool->options.lambda_d) ||
      read_weight(pool, "lambda_b", arguments[LAMBDA_B], &pool->options.lambda_b))
    return SQLITE_ERROR;
  if (sqlite3_value_type(arguments[K]) != SQLITE_INTEGER || sqlite3_value_int64(arguments[K]) < 1)
    return refuse(pool, "k", "be an integer of at least 1", arguments[K], NULL);
  pool->k = sqlite3_value_int64(arguments[K]);
  if (given(arguments[METRIC])) {
    const char* metric = (const char*)sqlite3_value_text(arguments[METRIC]);
    if (metric && strcmp(metric, "dot") == 0)
      pool->options.metric = RK_DOT;
    else if (!metric || strcmp(metric, "cosine") != 0)
      return refuse(pool, "metric", "be 'cosine' or 'dot'", arguments[METRIC], NULL);
  }
  pool->columns = parse_vector(arguments[QUERY], NULL, 0);
  if (pool->columns < 1) return refuse(pool, "query", vector_rule, arguments[QUERY], NULL);
  pool->query = sqlite3_malloc64(sizeof *pool->query * (sqlite3_uint64)pool->columns);
  if (!pool->query) return out_of_memory(pool);
  parse_vector(arguments[QUERY], pool->query, pool->columns);
  return SQLITE_OK;
}

static int grow(Pool* pool) {
  const sqlite3_uint64 capacity = pool->capacity ? 2 * (sqlite3_uint64)pool->capacity : 64;
  void* const vectors = sqlite3_realloc64(pool->vectors, capacity * sizeof(float) * (sqlite3_uint64)pool->columns);
  if (vectors) pool->vectors = vectors;
  void* const ids = sqlite3_realloc64(pool->ids, capacity * sizeof *pool->ids);
  if (ids) pool->ids = ids;
  void* const bias = sqlite3_realloc64(pool->bias, capacity * sizeof *pool->bias);
  if (bias) pool->bias = bias;
  if (!vectors || !ids || !bias) return out_of_memory(pool);
  pool->capacity = (sqlite3_int64)capacity;
  return SQLITE_OK;
}

int pool_add(Pool* pool, sqlite3_value* id, sqlite3_value* vector, sqlite3_value* bias) {
  if (!given(vector)) return SQLITE_OK;
  const int id_type = sqlite3_value_type(id);
  if (id_type != SQLITE_INTEGER && id_type != SQLITE_TEXT)
    return refuse(pool, "id", "be an integer or a text", id, NULL);
  if (pool->rows == pool->capacity && grow(pool)) return SQLITE_ERROR;
  const int found = parse_vector(vector, pool->vectors + pool->rows * pool->columns, pool->columns);
  if (found < 0) return refuse(pool, "vector", vector_rule, vector, id);
  if (found != pool->columns) {
    char* at = shown(id);
    pool_fail(pool, "vector must have %d numbers as the query has, got %d in the row with id %s", pool->columns, found,
              at);
    sqlite3_free(at);
    return SQLITE_ERROR;
  }
  if (given(bias)) {
    if (!is_number(bias) || !isfinite((float)sqlite3_value_double(bias)))
      return refuse(pool, "bias", "be a finite number", bias, id);
    if (pool->biased++ != pool->rows) return refuse(pool, "bias", "be given for every row or for none", bias, id);
    pool->bias[pool->rows] = (float)sqlite3_value_double(bias);
  } else if (pool->biased) {
    return refuse(pool, "bias", "be given for every row or for none", bias, id);
  }
  pool->ids[pool->rows] = sqlite3_value_dup(id);
  if (!pool->ids[pool->rows]) return out_of_memory(pool);
  ++pool->rows;
  return SQLITE_OK;
}

/* Words why the library refused: it knows no ids. */
static int explain(Pool* pool) {
  for (int d = 0; d < pool->columns; ++d)
    if (!isfinite(pool->query[d])) return pool_fail(pool, "query must be finite, got NaN or inf");
  for (sqlite3_int64 i = 0; i < pool->rows * pool->columns; ++i) {
    if (isfinite(pool->vectors[i])) continue;
    char* at = shown(pool->ids[i / pool->columns]);
    pool_fail(pool, "vector must be finite, got NaN or inf in the row with id %s", at);
    sqlite3_free(at);
    return SQLITE_ERROR;
  }
  sqlite3_free(pool->error);
  pool->error = sqlite3_mprintf("%s", rk_last_error());
  return SQLITE_ERROR;
}

int pool_select(Pool* pool) {
  if (!pool->rows) return SQLITE_OK;
  const int64_t k = pool->k < pool->rows ? pool->k : pool->rows;
  const sqlite3_uint64 size = (sqlite3_uint64)k;
  pool->indices = sqlite3_malloc64(size * sizeof *pool->indices);
  float** const outputs[] = {&pool->scores, &pool->relevance, &pool->redundancy};
  for (int i = 0; i < 3; ++i) *outputs[i] = sqlite3_malloc64(size * sizeof(float));
  if (!pool->indices || !pool->scores || !pool->relevance || !pool->redundancy) return out_of_memory(pool);
  if (pool->biased)
    pool->options.bias = pool->bias;
  else
    pool->options.lambda_b = 1;
  const rk_matrix rows = {pool->vectors, pool->rows, pool->columns, pool->columns, RK_FLOAT32};
  int32_t length;
  const rk_picks out = {pool->indices, pool->scores, pool->relevance, pool->redundancy, &length};
  const rk_status status =
      (strcmp(pool->op, "mmr") == 0 ? rk_mmr : rk_vrsd)(pool->query, 1, &rows, k, &pool->options, &out);
  if (status == RK_OUT_OF_MEMORY) return out_of_memory(pool);
  if (status != RK_OK) return explain(pool);
  pool->picked = length;
  return SQLITE_OK;
}
