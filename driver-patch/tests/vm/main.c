// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A /dev/kfd without a GPU, for the test of Atoll's ioctls in a virtual machine:
 * kfd_atoll.c as it is in the driver, and one GPU whose state is a parameter.
 */

#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include "kfd_priv.h"
#include "kfd_atoll.h"
#include "kfd_atoll_checks.h"

#define GPU_ID 6141

/* The fields of struct kfd_atoll_state, in order, from bit 0. */
static unsigned int state;
module_param(state, uint, 0600);
/* How many kills were sent. */
static unsigned int kills;
module_param(kills, uint, 0400);

struct kfd_process_device {
	struct kfd_process *process;
};

static struct kfd_process_device gpu;

struct kfd_process_device *
kfd_process_device_data_by_id(struct kfd_process *p, u32 gpu_id)
{
	gpu.process = p;
	return gpu_id == GPU_ID ? &gpu : NULL;
}

int kfd_atoll_reset_waves(struct kfd_process_device *pdd)
{
	struct kfd_atoll_state s = {
		.has_vm = state & 1, .can_kill = state & 2,
		.is_lost = state & 4, .is_stopped = state & 8,
		.is_evicted = state & 16, .is_debugged = state & 32,
		.is_shared = state & 64, .has_queues = state & 128,
	};
	int ret = kfd_atoll_check_state(&s);

	if (!mutex_is_locked(&pdd->process->mutex))
		return -EDEADLK;
	kills += ret == ATOLL_KFD_KILLED;
	return ret;
}

static int kfd_open(struct inode *inode, struct file *filep)
{
	struct kfd_process *p = kzalloc(sizeof(*p), GFP_KERNEL);

	if (!p)
		return -ENOMEM;
	mutex_init(&p->mutex);
	p->lead_thread = current->group_leader;
	filep->private_data = p;
	return 0;
}

static int kfd_release(struct inode *inode, struct file *filep)
{
	kfree(filep->private_data);
	return 0;
}

/* As the patch has it at the beginning of the driver's function. */
static long kfd_ioctl(struct file *filep, unsigned int cmd, unsigned long arg)
{
	if (kfd_atoll_is_ioctl(cmd))
		return kfd_atoll_ioctl(filep->private_data, cmd,
				       (void __user *)arg);
	return -ENOTTY;
}

static const struct file_operations kfd_fops = {
	.owner = THIS_MODULE,
	.open = kfd_open,
	.release = kfd_release,
	.unlocked_ioctl = kfd_ioctl,
};

static struct miscdevice kfd = {
	.minor = MISC_DYNAMIC_MINOR, .name = "kfd", .fops = &kfd_fops,
};

module_misc_device(kfd);
MODULE_DESCRIPTION("Atoll's ioctls of /dev/kfd without a GPU");
MODULE_LICENSE("Dual MIT/GPL");
