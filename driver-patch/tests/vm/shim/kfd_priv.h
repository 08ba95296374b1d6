/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What kfd_atoll.c uses of the driver, for the test module. */
#ifndef KFD_PRIV_H
#define KFD_PRIV_H

#include <linux/mutex.h>
#include <linux/types.h>

struct kfd_process_device;

struct kfd_process {
	struct mutex mutex;
	struct task_struct *lead_thread;
};

struct kfd_process_device *
kfd_process_device_data_by_id(struct kfd_process *p, u32 gpu_id);

#endif
