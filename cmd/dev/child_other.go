//go:build !linux

package main

import "syscall"

// childAttributes: a group of its own, so that Ctrl-C reaches the child only after the last commit.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
