/* Makes one call of fdatasync or fsync fail, as a disk would; preloaded into a child of the test.
 * FAILING_SYNC names the call, FAILING_SYNC_AT says which one of them: 1 is the first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_long calls;

static int perform(const char *name, int fd)
{
	const char *failing = getenv("FAILING_SYNC");
	const char *at = getenv("FAILING_SYNC_AT");
	int (*call)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);

	if (failing && at && !strcmp(failing, name) && atomic_fetch_add(&calls, 1) + 1 == atol(at)) {
		errno = EIO;
		return -1;
	}
	return call(fd);
}

int fdatasync(int fd)
{
	return perform("fdatasync", fd);
}

int fsync(int fd)
{
	return perform("fsync", fd);
}
