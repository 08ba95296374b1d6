/* Prints which runtime the program is linked with, and which one it loads by each argument: theirs
   returns 999 from every call, as the runtime that the program's RPATH leads to does. */
#include <dlfcn.h>
#include <stdio.h>

int cudaRuntimeGetVersion(int *);

static void print(const char *name, int (*call)(int *)) {
    int version = 0;
    printf("%s: %s\n", name, !call ? "missing" : call(&version) == 999 ? "theirs" : "of Atoll");
}

int main(int count, char **arguments) {
    print("needed", cudaRuntimeGetVersion);
    for (int number = 1; number < count; number++) {
        void *library = dlopen(arguments[number], RTLD_NOW);
        print("loaded", library ? (int (*)(int *))dlsym(library, "cudaRuntimeGetVersion") : 0);
    }
    return 0;
}
