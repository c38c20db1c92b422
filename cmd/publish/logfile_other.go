//go:build !unix || aix || solaris

package main

import (
	"errors"
	"io/fs"
	"os"
)

func inodeOf(fs.FileInfo) (device, inode uint64) { return 0, 0 }

func lock(*os.File) error { return errors.New("--follow needs a system with inodes and file locks") }
