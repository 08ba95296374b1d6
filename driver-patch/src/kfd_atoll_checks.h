/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The checks of Atoll's ioctls, apart from the driver: kfd_atoll.c and a test in
 * user space (driver-patch/tests/checks.c in Atoll's repository) compile them.
 */
#ifndef KFD_ATOLL_CHECKS_H
#define KFD_ATOLL_CHECKS_H

#ifdef __KERNEL__
#include <linux/errno.h>
#include <linux/types.h>
#else
#include <errno.h>
#include <stdbool.h>
#endif

#include "atoll_kfd.h"

/* What decides whether the waves of a process can be killed on a GPU. */
struct kfd_atoll_state {
	/* The process has acquired a VM of the GPU. */
	bool has_vm;
	/* The driver can find and kill the waves of one process. */
	bool can_kill;
	/* The GPU hangs or is being reset. */
	bool is_lost;
	/* The GPU runs no queues for now, as in system suspend. */
	bool is_stopped;
	/* The queues of the process are off the GPU, their waves saved. */
	bool is_evicted;
	/* A debugger controls the queues of the process. */
	bool is_debugged;
	/*
	 * The firmware switches between processes or queues by itself, so the
	 * VMID of the process could be another's when the kill arrives.
	 */
	bool is_shared;
	/* The process has an active queue. */
	bool has_queues;
};

/* 0, or why a query of the interface is refused. */
static inline int kfd_atoll_check_abi(const struct atoll_kfd_abi_args *args)
{
	if (args->abi || args->flags || args->reserved[0] || args->reserved[1])
		return -EINVAL;
	return 0;
}

/* 0, or why a reset is refused before its GPU is looked up. */
static inline int
kfd_atoll_check_reset(const struct atoll_kfd_reset_waves_args *args)
{
	/* First: the other fields have this meaning in this version only. */
	if (args->abi != ATOLL_KFD_ABI)
		return -EPROTO;
	if (args->flags & ~(__u32)ATOLL_KFD_RESET_FLAGS)
		return -EINVAL;
	if (args->outcome || args->reserved[0] || args->reserved[1])
		return -EINVAL;
	if (!args->gpu_id)
		return -EINVAL;
	return 0;
}

/* ATOLL_KFD_KILLED, ATOLL_KFD_NOTHING_RUNS, or why no kill may be sent. */
static inline int kfd_atoll_check_state(const struct kfd_atoll_state *state)
{
	if (!state->has_vm)
		return -ENODEV;
	if (!state->can_kill)
		return -EOPNOTSUPP;
	if (state->is_lost)
		return -EIO;
	if (state->is_stopped || state->is_evicted || state->is_debugged)
		return -EBUSY;
	if (!state->has_queues)
		return ATOLL_KFD_NOTHING_RUNS;
	if (state->is_shared)
		return -EBUSY;
	return ATOLL_KFD_KILLED;
}

#endif
