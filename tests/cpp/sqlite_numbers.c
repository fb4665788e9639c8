/* The numbers that the extension of SQLite reads of a JSON array: `sqlite_numbers LOCALE ARRAY...`, a line for each. */
#include "../../csrc/sqlite/pool.c"

#include <locale.h>
#include <stdio.h>

int main(int argc, char** argv) {
  if (argc < 2 || !setlocale(LC_ALL, argv[1])) return 2;
  for (int i = 2; i < argc; ++i) {
    float numbers[8] = {0};
    const int found = parse_json(argv[i], numbers, 8);
    printf("%d", found);
    for (int j = 0; j < found && j < 8; ++j) printf(" %a", (double)numbers[j]);
    putchar('\n');
  }
  return 0;
}
