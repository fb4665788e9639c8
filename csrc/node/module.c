/* The kernels for Node: typed arrays in, typed arrays out. node/index.js checks what people pass, and words it. */
#include <stdlib.h>
#include <string.h>

#define NAPI_VERSION 8
#include <node_api.h>

#include "ragsys_kernels.h"

#define TRY(call) \
  if ((call) != napi_ok) return NULL

static napi_value fail(napi_env env, rk_status status) {
  if (status == RK_INVALID_ARGUMENT)
    napi_throw_range_error(env, NULL, rk_last_error());
  else
    napi_throw_error(env, NULL, status == RK_OUT_OF_MEMORY ? "out of memory" : rk_last_error());
  return NULL;
}

/* A typed array of this type; NULL and an exception where it is another one. null and undefined are none. */
static int typed_array(napi_env env, napi_value value, napi_typedarray_type wanted, void** data, size_t* length) {
  bool is_typed = false;
  napi_valuetype kind;
  napi_typedarray_type type;
  *data = NULL;
  *length = 0;
  if (napi_typeof(env, value, &kind) != napi_ok) return 0;
  if (kind == napi_null || kind == napi_undefined) return 1;
  if (napi_is_typedarray(env, value, &is_typed) != napi_ok) return 0;
  if (!is_typed || napi_get_typedarray_info(env, value, &type, length, data, NULL, NULL) != napi_ok || type != wanted) {
    napi_throw_type_error(env, NULL, "a typed array of another type was expected");
    return 0;
  }
  return 1;
}

static napi_value new_array(napi_env env, napi_typedarray_type type, size_t length, void** data) {
  napi_value buffer, array;
  TRY(napi_create_arraybuffer(env, length * 4, data, &buffer));
  TRY(napi_create_typedarray(env, type, length, buffer, 0, &array));
  return array;
}

/* select(rule, query, rows, columns, k, lambdaD, lambdaB, metric, bias, candidates):
 * [picked, indices, scores, relevance, redundancy]. */
static napi_value select_rows(napi_env env, napi_callback_info info) {
  size_t count = 10;
  napi_value arguments[10], result, indices, value;
  TRY(napi_get_cb_info(env, info, &count, arguments, NULL, NULL));
  int32_t rule, metric;
  int64_t columns, k;
  rk_select_options options;
  rk_select_options_init(&options);
  TRY(napi_get_value_int32(env, arguments[0], &rule));
  TRY(napi_get_value_int64(env, arguments[3], &columns));
  TRY(napi_get_value_int64(env, arguments[4], &k));
  TRY(napi_get_value_double(env, arguments[5], &options.lambda_d));
  TRY(napi_get_value_double(env, arguments[6], &options.lambda_b));
  TRY(napi_get_value_int32(env, arguments[7], &metric));
  options.metric = metric;
  void *query, *rows, *bias, *candidates;
  size_t query_size, rows_size, bias_size, pool;
  if (!typed_array(env, arguments[1], napi_float32_array, &query, &query_size) ||
      !typed_array(env, arguments[2], napi_float32_array, &rows, &rows_size) ||
      !typed_array(env, arguments[8], napi_float32_array, &bias, &bias_size) ||
      !typed_array(env, arguments[9], napi_int32_array, &candidates, &pool))
    return NULL;
  /* What memory depends on. */
  const int64_t num_rows = columns > 0 ? (int64_t)rows_size / columns : 0;
  const int64_t items = candidates ? (int64_t)pool : num_rows;
  if (columns < 1 || (size_t)columns != query_size || (size_t)(num_rows * columns) != rows_size ||
      (bias && (int64_t)bias_size != num_rows) || k < 1 || k > items) {
    napi_throw_range_error(env, NULL, "sizes must fit");
    return NULL;
  }

  int64_t* const wide = malloc((size_t)(k + (candidates ? items : 0)) * sizeof(int64_t));
  if (!wide) return fail(env, RK_OUT_OF_MEMORY);
  options.bias = bias;
  if (candidates) {
    for (int64_t i = 0; i < items; ++i) wide[k + i] = ((const int32_t*)candidates)[i];
    options.candidates = wide + k;
    options.pool = items;
  }
  void *narrow = NULL, *made[3] = {NULL};
  napi_value floats[3];
  indices = new_array(env, napi_int32_array, (size_t)k, &narrow);
  for (int i = 0; indices && i < 3; ++i)
    if (!(floats[i] = new_array(env, napi_float32_array, (size_t)k, &made[i]))) indices = NULL;
  if (!indices) {
    free(wide);
    return NULL;
  }
  const rk_matrix matrix = {rows, num_rows, columns, columns, RK_FLOAT32};
  int32_t picked = 0;
  const rk_picks out = {wide, made[0], made[1], made[2], &picked};
  const rk_status status = (rule == 0 ? rk_mmr : rk_vrsd)(query, 1, &matrix, k, &options, &out);
  for (int64_t i = 0; status == RK_OK && i < k; ++i) ((int32_t*)narrow)[i] = (int32_t)wide[i];
  free(wide);
  if (status != RK_OK) return fail(env, status);
  TRY(napi_create_array_with_length(env, 5, &result));
  TRY(napi_create_int32(env, picked, &value));
  TRY(napi_set_element(env, result, 0, value));
  TRY(napi_set_element(env, result, 1, indices));
  for (uint32_t i = 0; i < 3; ++i) TRY(napi_set_element(env, result, i + 2, floats[i]));
  return result;
}

/* tokenLogprobs(logits, targets, temperature, logitScale, softcap): Float32Array. */
static napi_value token_logprobs(napi_env env, napi_callback_info info) {
  size_t count = 5, size, tokens;
  napi_value arguments[5], result;
  void *logits, *targets, *out;
  rk_logprob_options options;
  rk_logprob_options_init(&options);
  TRY(napi_get_cb_info(env, info, &count, arguments, NULL, NULL));
  TRY(napi_get_value_double(env, arguments[2], &options.temperature));
  TRY(napi_get_value_double(env, arguments[3], &options.logit_scale));
  TRY(napi_get_value_double(env, arguments[4], &options.softcap));
  if (!typed_array(env, arguments[0], napi_float32_array, &logits, &size) ||
      !typed_array(env, arguments[1], napi_int32_array, &targets, &tokens))
    return NULL;
  if (!tokens || !size || size % tokens) {
    napi_throw_range_error(env, NULL, "sizes must fit");
    return NULL;
  }
  if (!(result = new_array(env, napi_float32_array, tokens, &out))) return NULL;
  int64_t* const wide = malloc(tokens * sizeof *wide);
  if (!wide) return fail(env, RK_OUT_OF_MEMORY);
  for (size_t t = 0; t < tokens; ++t) wide[t] = ((const int32_t*)targets)[t];
  const int64_t columns = (int64_t)(size / tokens);
  const rk_matrix matrix = {logits, (int64_t)tokens, columns, columns, RK_FLOAT32};
  const rk_status status = rk_token_logprobs(&matrix, wide, &options, out);
  free(wide);
  return status == RK_OK ? result : fail(env, status);
}

NAPI_MODULE_INIT() {
  napi_value version, isa;
  const napi_property_descriptor functions[] = {
      {"select", NULL, select_rows, NULL, NULL, NULL, napi_enumerable, NULL},
      {"tokenLogprobs", NULL, token_logprobs, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  TRY(napi_define_properties(env, exports, 2, functions));
  TRY(napi_create_string_utf8(env, rk_version(), NAPI_AUTO_LENGTH, &version));
  TRY(napi_create_string_utf8(env, rk_instruction_set(), NAPI_AUTO_LENGTH, &isa));
  TRY(napi_set_named_property(env, exports, "version", version));
  TRY(napi_set_named_property(env, exports, "instructionSet", isa));
  return exports;
}
