package main

import "syscall"

// childAttributes: a group of its own, so that Ctrl-C reaches the child only after the last commit. The child
// ends with this process, however that ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
