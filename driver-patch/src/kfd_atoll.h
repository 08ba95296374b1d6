/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#ifndef KFD_ATOLL_H
#define KFD_ATOLL_H

#include <linux/compiler_types.h>
#include <linux/types.h>

struct kfd_process;
struct kfd_process_device;

/* Whether an ioctl of /dev/kfd is one of Atoll's. */
bool kfd_atoll_is_ioctl(unsigned int cmd);

/* Handles an ioctl for the process that opened /dev/kfd. */
long kfd_atoll_ioctl(struct kfd_process *p, unsigned int cmd, void __user *arg);

/*
 * Kills the waves of a process on a GPU: an outcome of atoll_kfd.h, or an error.
 * In kfd_device_queue_manager.c. The caller holds the mutex of the process.
 */
int kfd_atoll_reset_waves(struct kfd_process_device *pdd);

#endif
