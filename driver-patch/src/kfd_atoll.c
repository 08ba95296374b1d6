// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Atoll's ioctls of /dev/kfd. atoll_kfd.h describes them; the checks are in
 * kfd_atoll_checks.h.
 */

#include <linux/build_bug.h>
#include <linux/sched.h>
#include <linux/uaccess.h>
#include <uapi/linux/kfd_ioctl.h>
#include "kfd_priv.h"
#include "kfd_atoll.h"
#include "kfd_atoll_checks.h"

/* A kernel without the patch must not know these numbers. */
static_assert(_IOC_NR(ATOLL_KFD_IOC_ABI) >= AMDKFD_COMMAND_END);

bool kfd_atoll_is_ioctl(unsigned int cmd)
{
	return cmd == ATOLL_KFD_IOC_ABI || cmd == ATOLL_KFD_IOC_RESET_WAVES;
}

static long kfd_atoll_ioctl_abi(void __user *arg)
{
	struct atoll_kfd_abi_args args;
	int ret;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;
	ret = kfd_atoll_check_abi(&args);
	if (ret)
		return ret;

	args.abi = ATOLL_KFD_ABI;
	args.flags = ATOLL_KFD_RESET_FLAGS;
	return copy_to_user(arg, &args, sizeof(args)) ? -EFAULT : 0;
}

static long kfd_atoll_ioctl_reset_waves(struct kfd_process *p, void __user *arg)
{
	struct atoll_kfd_reset_waves_args args;
	struct kfd_process_device *pdd;
	int ret;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;
	ret = kfd_atoll_check_reset(&args);
	if (ret)
		return ret;

	mutex_lock(&p->mutex);
	pdd = kfd_process_device_data_by_id(p, args.gpu_id);
	ret = pdd ? kfd_atoll_reset_waves(pdd) : -EINVAL;
	mutex_unlock(&p->mutex);
	if (ret < 0)
		return ret;

	args.outcome = ret;
	return copy_to_user(arg, &args, sizeof(args)) ? -EFAULT : 0;
}

long kfd_atoll_ioctl(struct kfd_process *p, unsigned int cmd, void __user *arg)
{
	/* A descriptor that was inherited or sent is refused. */
	if (p->lead_thread != current->group_leader)
		return -EBADF;

	switch (cmd) {
	case ATOLL_KFD_IOC_ABI:
		return kfd_atoll_ioctl_abi(arg);
	case ATOLL_KFD_IOC_RESET_WAVES:
		return kfd_atoll_ioctl_reset_waves(p, arg);
	default:
		return -ENOTTY;
	}
}
