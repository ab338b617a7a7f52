/* The process of a pod's sandbox: it holds the pod's namespaces, waits, and reaps. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void stop(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0); }

int main(void) {
  signal(SIGINT, stop);
  signal(SIGTERM, stop);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
