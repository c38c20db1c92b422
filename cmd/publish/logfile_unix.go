//go:build unix && !aix && !solaris

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// inodeOf returns the device and the inode of a file.
func inodeOf(info fs.FileInfo) (device, inode uint64) {
	stat := info.Sys().(*syscall.Stat_t)
	return uint64(stat.Dev), uint64(stat.Ino) //nolint:unconvert // their types differ per system
}

// lock keeps others from the file until it is closed or this process ends, however it does.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
