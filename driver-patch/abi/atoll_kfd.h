/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * The ioctls that Atoll's patch adds to /dev/kfd of the amdgpu driver.
 *
 * A process may end its own running waves on one GPU and keep its queues, its
 * memory and its code. Nothing here acts on another process: the ioctls work
 * only in the process that opened the descriptor.
 *
 * A kernel without the patch answers ENOTTY to both. Their numbers are outside
 * the range that the driver uses (up to 0x26 in Linux 6.12) and outside the
 * range of AMD's own packages of the driver (from 0x80).
 */
#ifndef ATOLL_KFD_H
#define ATOLL_KFD_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Version of this interface. It changes with every incompatible change. */
#define ATOLL_KFD_ABI 1

/* Flags of a reset that this version knows: none. */
#define ATOLL_KFD_RESET_FLAGS 0

/* Outcomes of a reset that succeeded. */
/* The process has no active queue on the GPU, so no wave of it can run. */
#define ATOLL_KFD_NOTHING_RUNS 0
/* The kill was sent to all waves of the process on the GPU. */
#define ATOLL_KFD_KILLED 1

/**
 * struct atoll_kfd_abi_args - which interface the driver has
 * @abi: out: ATOLL_KFD_ABI of the driver; in: 0
 * @flags: out: the flags that a reset accepts; in: 0
 * @reserved: 0
 */
struct atoll_kfd_abi_args {
	__u32 abi;
	__u32 flags;
	__u32 reserved[2];
};

/**
 * struct atoll_kfd_reset_waves_args - end the waves of the calling process
 * @abi: in: ATOLL_KFD_ABI of the caller
 * @gpu_id: in: the GPU, by `gpu_id` of its node in
 *	/sys/class/kfd/kfd/topology/nodes
 * @flags: in: 0
 * @outcome: out: ATOLL_KFD_KILLED or ATOLL_KFD_NOTHING_RUNS; in: 0
 * @reserved: 0
 *
 * The waves end without saving anything. A wave that the GPU starts later, from
 * the same launch or another one, is not affected: raise a flag that kernels
 * read when they start before the call.
 *
 * Errors:
 *
 * ========== ================================================================
 * EPROTO     @abi is not the driver's; ATOLL_KFD_IOC_ABI returns the driver's
 * EINVAL     unknown @flags, @outcome or @reserved are not zero, @gpu_id is 0 or
 *            not a GPU of this process
 * ENODEV     the process has not acquired a VM of this GPU
 * EOPNOTSUPP the driver cannot tell which waves belong to a process on this GPU
 *            (RDNA 3 and later, virtual functions)
 * EIO        the GPU hangs or is being reset
 * EBUSY      no kill was sent, and waves may go on: the GPU is suspended, the
 *            queues of the process are evicted, a debugger is attached, or more
 *            processes or queues want the GPU than it can hold
 * EBADF      the descriptor was opened by another process
 * EFAULT     the arguments are not readable and writable memory
 * ENOTTY     the kernel does not have the patch
 * ========== ================================================================
 */
struct atoll_kfd_reset_waves_args {
	__u32 abi;
	__u32 gpu_id;
	__u32 flags;
	__u32 outcome;
	__u64 reserved[2];
};

#define ATOLL_KFD_IOC_ABI \
	_IOWR('A', 0xe0, struct atoll_kfd_abi_args)
#define ATOLL_KFD_IOC_RESET_WAVES \
	_IOWR('A', 0xe1, struct atoll_kfd_reset_waves_args)

#endif
