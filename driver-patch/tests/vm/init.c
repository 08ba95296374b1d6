// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The first process of the virtual machine: loads the test module, calls the
 * ioctls of /dev/kfd as a good and as a bad client, and prints the result.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "atoll_kfd.h"

#define GPU_ID 6141
#define PARAMETERS "/sys/module/kfd_atoll_test/parameters/"
#define GOOD (1 | 2 | 128)

static int cases, failures;

static void expect(const char *what, long got, long wanted)
{
	cases++;
	if (got == wanted)
		return;
	failures++;
	printf("%s: got %ld, not %ld\n", what, got, wanted);
}

/* 0, or the error of a call as a negative number. */
static long call(int fd, unsigned long number, void *args)
{
	return ioctl(fd, number, args) ? -errno : 0;
}

static struct atoll_kfd_reset_waves_args good(void)
{
	return (struct atoll_kfd_reset_waves_args){
		.abi = ATOLL_KFD_ABI, .gpu_id = GPU_ID,
	};
}

static void set_state(unsigned int state)
{
	FILE *file = fopen(PARAMETERS "state", "w");

	if (!file || fprintf(file, "%u", state) < 0 || fclose(file))
		expect("setting the state", -errno, 0);
}

static long kills(void)
{
	FILE *file = fopen(PARAMETERS "kills", "r");
	long count = -1;

	if (file && fscanf(file, "%ld", &count) == 1)
		fclose(file);
	return count;
}

static void arguments(int fd)
{
	struct atoll_kfd_reset_waves_args reset;
	struct atoll_kfd_abi_args abi = { 0 };
	void *page;

	expect("abi", call(fd, ATOLL_KFD_IOC_ABI, &abi), 0);
	expect("the version", abi.abi, ATOLL_KFD_ABI);
	expect("the flags", abi.flags, ATOLL_KFD_RESET_FLAGS);
	expect("abi again", call(fd, ATOLL_KFD_IOC_ABI, &abi), -EINVAL);
	expect("abi of nothing", call(fd, ATOLL_KFD_IOC_ABI, NULL), -EFAULT);

	reset = good(), reset.abi++;
	expect("abi 2", call(fd, ATOLL_KFD_IOC_RESET_WAVES, &reset), -EPROTO);
	reset = good(), reset.flags = 1;
	expect("flag", call(fd, ATOLL_KFD_IOC_RESET_WAVES, &reset), -EINVAL);
	reset = good(), reset.outcome = 1;
	expect("outcome", call(fd, ATOLL_KFD_IOC_RESET_WAVES, &reset), -EINVAL);
	reset = good(), reset.reserved[1] = 1;
	expect("reserved", call(fd, ATOLL_KFD_IOC_RESET_WAVES, &reset), -EINVAL);
	reset = good(), reset.gpu_id = 0;
	expect("GPU 0", call(fd, ATOLL_KFD_IOC_RESET_WAVES, &reset), -EINVAL);
	reset = good(), reset.gpu_id = 1;
	expect("GPU 1", call(fd, ATOLL_KFD_IOC_RESET_WAVES, &reset), -EINVAL);
	expect("reset of nothing", call(fd, ATOLL_KFD_IOC_RESET_WAVES, NULL),
	       -EFAULT);
	expect("another number", call(fd, _IO('A', 0xe1), NULL), -ENOTTY);
	expect("another size", call(fd, _IOWR('A', 0xe1, __u64[9]), &reset),
	       -ENOTTY);
	expect("kills by refused calls", kills(), 0);

	/* Half of the arguments lie behind the end of the mapping. */
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	expect("cut off", call(fd, ATOLL_KFD_IOC_RESET_WAVES, page + 4080),
	       -EFAULT);
	/* Arguments that cannot be written: the kill is sent all the same. */
	*(struct atoll_kfd_reset_waves_args *)page = good();
	mprotect(page, 4096, PROT_READ);
	expect("read-only", call(fd, ATOLL_KFD_IOC_RESET_WAVES, page), -EFAULT);
	expect("kills by read-only arguments", kills(), 1);
}

static void states(int fd)
{
	static const struct {
		unsigned int state;
		long answer;
	} table[] = {
		{ 0, -ENODEV }, { 1, -EOPNOTSUPP }, { GOOD | 4, -EIO },
		{ GOOD | 8, -EBUSY }, { GOOD | 16, -EBUSY },
		{ GOOD | 32, -EBUSY }, { GOOD | 64, -EBUSY },
		{ 1 | 2, ATOLL_KFD_NOTHING_RUNS }, { GOOD, ATOLL_KFD_KILLED },
	};
	unsigned int at;

	for (at = 0; at < sizeof(table) / sizeof(table[0]); at++) {
		struct atoll_kfd_reset_waves_args reset = good();
		long answer, before = kills();

		set_state(table[at].state);
		answer = call(fd, ATOLL_KFD_IOC_RESET_WAVES, &reset);
		expect("a state", answer ? answer : reset.outcome,
		       table[at].answer);
		expect("its kills", kills() - before,
		       table[at].answer == ATOLL_KFD_KILLED);
	}
}

/* A child has the descriptor, and is another process. */
static void inherited(int fd)
{
	long before = kills();
	int status = -1;
	pid_t child = fork();

	if (!child) {
		struct atoll_kfd_reset_waves_args reset = good();
		struct atoll_kfd_abi_args abi = { 0 };

		_exit(call(fd, ATOLL_KFD_IOC_RESET_WAVES, &reset) != -EBADF ||
		      call(fd, ATOLL_KFD_IOC_ABI, &abi) != -EBADF);
	}
	waitpid(child, &status, 0);
	expect("an inherited descriptor is refused", status, 0);
	expect("its kills", kills() - before, 0);
}

int main(void)
{
	int module, fd;

	/* The firmware's last line has no end. */
	puts("");
	mkdir("/dev", 0755);
	mkdir("/sys", 0755);
	mount("dev", "/dev", "devtmpfs", 0, NULL);
	mount("sys", "/sys", "sysfs", 0, NULL);
	module = open("/kfd_atoll_test.ko", O_RDONLY | O_CLOEXEC);
	expect("loading the module",
	       syscall(SYS_finit_module, module, "", 0) ? -errno : 0, 0);
	fd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
	expect("opening /dev/kfd", fd < 0 ? -errno : 0, 0);
	if (fd >= 0) {
		set_state(GOOD);
		arguments(fd);
		states(fd);
		inherited(fd);
	}
	printf("driver-patch vm: %d checks, %d failed\n", cases, failures);
	fflush(stdout);
	sync();
	reboot(RB_POWER_OFF);
	return 1;
}
