-- Declarations of the calls of the system that start, watch and end processes, with their constants. Linux only.

local engine = require("moonshard.base.ffi")

engine.ffi.cdef [[
typedef struct { int descriptor; short events, happened; } ms_lua_pollfd;
int fork(void);
int execv(const char *path, const char *const *arguments);
void _exit(int status);
int open(const char *path, int flags, ...);
int close(int descriptor);
int dup2(int from, int to);
int pipe2(int ends[2], int flags);
int memfd_create(const char *name, unsigned flags);
long read(int descriptor, void *buffer, size_t bytes);
long pread(int descriptor, void *buffer, size_t bytes, long from);
long write(int descriptor, const void *buffer, size_t bytes);
long lseek(int descriptor, long offset, int whence);
int poll(ms_lua_pollfd *list, unsigned long count, int milliseconds);
int setpgid(int pid, int group);
int getppid(void);
int getpid(void);
int prctl(int option, ...);
int waitpid(int pid, int *status, int flags);
int kill(int pid, int signal);
typedef struct { unsigned long bits[1024 / (8 * sizeof(unsigned long))]; } ms_lua_sigset;
int sigemptyset(ms_lua_sigset *set);
int sigaddset(ms_lua_sigset *set, int signal);
int sigprocmask(int how, const ms_lua_sigset *set, ms_lua_sigset *before);
void (*signal(int number, void (*handler)(int)))(int);
]]

-- The same on every architecture that the executable is built for.
return {
  O_RDONLY = 0, O_WRONLY = 1, O_CREAT = 64, O_TRUNC = 512, O_CLOEXEC = 524288,
  POLLIN = 1, WNOHANG = 1, SEEK_CUR = 1, PR_SET_PDEATHSIG = 1,
  SIGINT = 2, SIGKILL = 9, SIGTERM = 15, EINTR = 4, SIG_BLOCK = 0, SIG_SETMASK = 2,
}
