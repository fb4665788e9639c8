/* The entry point of the SQLite extension; its name is that of the file, ragsys_kernels_sqlite. */
#include "pool.h"

SQLITE_EXTENSION_INIT1

static void version(sqlite3_context* context, int count, sqlite3_value** values) {
  (void)count, (void)values;
  sqlite3_result_text(context, rk_version(), -1, SQLITE_STATIC);
}

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
int sqlite3_ragsyskernelssqlite_init(sqlite3* db, char** error, const sqlite3_api_routines* api) {
  (void)error;
  SQLITE_EXTENSION_INIT2(api);
  int status = rk_register_aggregates(db);
  if (status == SQLITE_OK) status = rk_register_tables(db);
  if (status == SQLITE_OK)
    status = sqlite3_create_function_v2(db, "rk_version", 0, SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS,
                                        NULL, version, NULL, NULL, NULL);
  return status;
}
