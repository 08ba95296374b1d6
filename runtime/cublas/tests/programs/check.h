/* Common parts of the programs. */
#include <stddef.h>

/* Declared as in cublas_v2.h. */
int cublasCreate_v2(void **), cublasDestroy_v2(void *), cublasSetStream_v2(void *, void *);
int cublasSetPointerMode_v2(void *, int);
const char *cublasGetStatusName(int);

enum { N = 0, T = 1, C = 2 };
enum { F32 = 0, F64 = 1, F16 = 2, S8 = 3, S32 = 10, BF16 = 14 };
enum { COMPUTE_16F = 64, COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32I = 72, COMPUTE_TF32 = 77 };
enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
#define NAME_OF(status) cublasGetStatusName(status)

#include "../../../cuda-library/tests/programs/numbers.h"
