// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The checks of the ioctls, compiled for user space and called with each kind of
 * bad argument. driver-patch/check.sh builds and runs it.
 */

#include <stddef.h>
#include <stdio.h>
#include "kfd_atoll_checks.h"

static int failures;
static int cases;

static void expect(const char *what, int got, int wanted)
{
	cases++;
	if (got == wanted)
		return;
	failures++;
	fprintf(stderr, "%s: got %d, not %d\n", what, got, wanted);
}

static void layout(void)
{
	/* The layout and the numbers are the interface: these never change. */
	expect("size of abi", sizeof(struct atoll_kfd_abi_args), 16);
	expect("size of reset", sizeof(struct atoll_kfd_reset_waves_args), 32);
	expect("offset of gpu_id",
	       offsetof(struct atoll_kfd_reset_waves_args, gpu_id), 4);
	expect("offset of flags",
	       offsetof(struct atoll_kfd_reset_waves_args, flags), 8);
	expect("offset of outcome",
	       offsetof(struct atoll_kfd_reset_waves_args, outcome), 12);
	expect("offset of reserved",
	       offsetof(struct atoll_kfd_reset_waves_args, reserved), 16);
	expect("number of abi", ATOLL_KFD_IOC_ABI == 0xc01041e0, 1);
	expect("number of reset", ATOLL_KFD_IOC_RESET_WAVES == 0xc02041e1, 1);
}

static void abi(void)
{
	struct atoll_kfd_abi_args args = { 0 };

	expect("abi", kfd_atoll_check_abi(&args), 0);
	args = (struct atoll_kfd_abi_args){ .abi = ATOLL_KFD_ABI };
	expect("abi with a version", kfd_atoll_check_abi(&args), -EINVAL);
	args = (struct atoll_kfd_abi_args){ .flags = 1 };
	expect("abi with flags", kfd_atoll_check_abi(&args), -EINVAL);
	args = (struct atoll_kfd_abi_args){ .reserved = { 1, 0 } };
	expect("abi, reserved 0", kfd_atoll_check_abi(&args), -EINVAL);
	args = (struct atoll_kfd_abi_args){ .reserved = { 0, 1u << 31 } };
	expect("abi, reserved 1", kfd_atoll_check_abi(&args), -EINVAL);
}

static void reset(void)
{
	const struct atoll_kfd_reset_waves_args good = {
		.abi = ATOLL_KFD_ABI, .gpu_id = 6141,
	};
	struct atoll_kfd_reset_waves_args args = good;
	int bit;

	expect("reset", kfd_atoll_check_reset(&args), 0);
	args.gpu_id = ~0u;
	expect("reset of the last id", kfd_atoll_check_reset(&args), 0);

	args = good;
	args.abi = 0;
	expect("no version", kfd_atoll_check_reset(&args), -EPROTO);
	args.abi = ATOLL_KFD_ABI + 1;
	expect("a later version", kfd_atoll_check_reset(&args), -EPROTO);
	args.flags = ~0u;
	args.reserved[0] = 1;
	expect("a later version with flags", kfd_atoll_check_reset(&args),
	       -EPROTO);

	for (bit = 0; bit < 32; bit++) {
		args = good;
		args.flags = 1u << bit;
		expect("an unknown flag", kfd_atoll_check_reset(&args), -EINVAL);
		args = good;
		args.outcome = 1u << bit;
		expect("an outcome", kfd_atoll_check_reset(&args), -EINVAL);
	}
	for (bit = 0; bit < 128; bit++) {
		args = good;
		args.reserved[bit / 64] = (__u64)1 << bit % 64;
		expect("a reserved bit", kfd_atoll_check_reset(&args), -EINVAL);
	}
	args = good;
	args.gpu_id = 0;
	expect("no GPU", kfd_atoll_check_reset(&args), -EINVAL);
}

static void state(void)
{
	const struct kfd_atoll_state good = {
		.has_vm = true, .can_kill = true, .has_queues = true,
	};
	struct kfd_atoll_state s = good;
	int bits, kills = 0;

	expect("a state", kfd_atoll_check_state(&s), ATOLL_KFD_KILLED);
	s.has_queues = false;
	expect("no queue", kfd_atoll_check_state(&s), ATOLL_KFD_NOTHING_RUNS);
	s.is_shared = true;
	expect("no queue on a shared GPU", kfd_atoll_check_state(&s),
	       ATOLL_KFD_NOTHING_RUNS);

	s = good, s.has_vm = false;
	expect("no VM", kfd_atoll_check_state(&s), -ENODEV);
	s = good, s.can_kill = false;
	expect("no kill", kfd_atoll_check_state(&s), -EOPNOTSUPP);
	s = good, s.is_lost = true;
	expect("in reset", kfd_atoll_check_state(&s), -EIO);
	s = good, s.is_stopped = true;
	expect("suspended", kfd_atoll_check_state(&s), -EBUSY);
	s = good, s.is_evicted = true;
	expect("evicted", kfd_atoll_check_state(&s), -EBUSY);
	s.has_queues = false;
	expect("evicted, no queue", kfd_atoll_check_state(&s), -EBUSY);
	s = good, s.is_debugged = true;
	expect("debugged", kfd_atoll_check_state(&s), -EBUSY);
	s = good, s.is_shared = true;
	expect("oversubscribed", kfd_atoll_check_state(&s), -EBUSY);
	s = good, s.is_lost = true, s.is_stopped = true;
	expect("in reset and stopped", kfd_atoll_check_state(&s), -EIO);

	/* Of all 256 states, only one has a kill. */
	for (bits = 0; bits < 256; bits++) {
		s = (struct kfd_atoll_state){
			.has_vm = bits & 1, .can_kill = bits & 2,
			.is_lost = bits & 4, .is_stopped = bits & 8,
			.is_evicted = bits & 16, .is_debugged = bits & 32,
			.is_shared = bits & 64, .has_queues = bits & 128,
		};
		kills += kfd_atoll_check_state(&s) == ATOLL_KFD_KILLED;
	}
	expect("states with a kill", kills, 1);
}

int main(void)
{
	layout();
	abi();
	reset();
	state();
	printf("driver-patch: %d checks, %d failed\n", cases, failures);
	return failures != 0;
}
