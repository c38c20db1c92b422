package boot

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Files are files that a program reads again when they change. It is safe for concurrent use.
type Files struct {
	paths []string

	mu   sync.Mutex
	used [sha256.Size]byte // the sum when they were read last
}

// NewFiles leaves out empty paths.
func NewFiles(paths ...string) *Files {
	f := &Files{}
	for _, path := range paths {
		if path != "" {
			f.paths = append(f.paths, path)
		}
	}
	return f
}

// Reading must be called before the files are read: what changes from then on is read again.
func (f *Files) Reading() {
	sum := f.sum()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used = sum
}

// filesEvery is the pause between two looks at files.
const filesEvery = time.Second

// Follow looks at the files until ctx ends. It calls read, which calls Reading, if they have changed and are the same at two
// looks: somebody may just be writing one, or still have to replace the other.
func (f *Files) Follow(ctx context.Context, read func()) {
	ticker := time.NewTicker(filesEvery)
	defer ticker.Stop()
	var seen [sha256.Size]byte
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := f.sum()
		f.mu.Lock()
		changed := now == seen && now != f.used
		f.mu.Unlock()
		seen = now
		if changed {
			read()
		}
	}
}

// sum tells the contents of the files, or why one cannot be read, from others.
func (f *Files) sum() (sum [sha256.Size]byte) {
	all := sha256.New()
	for _, path := range f.paths {
		one := sha256.New()
		file, err := os.Open(path)
		if err == nil {
			_, err = io.Copy(one, file)
			_ = file.Close()
		}
		fmt.Fprintf(all, "%x %v\n", one.Sum(nil), err)
	}
	return [sha256.Size]byte(all.Sum(nil))
}
