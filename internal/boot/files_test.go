package boot

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Files are read again once they have changed and are the same at two looks, and not because they were read meanwhile.
func TestFilesAreReadAgain(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	one, two := filepath.Join(directory, "one"), filepath.Join(directory, "two")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		write(one, "a")
		var reads atomic.Int32
		f := NewFiles(one, "", two)
		f.Reading()
		go f.Follow(t.Context(), func() { f.Reading(); reads.Add(1) })
		time.Sleep(filesEvery / 2) // between two looks
		after := func(looks int, want int32, what string) {
			t.Helper()
			time.Sleep(time.Duration(looks) * filesEvery)
			synctest.Wait()
			if got := reads.Load(); got != want {
				t.Errorf("%s: read %d times, want %d", what, got, want)
			}
		}
		after(5, 0, "nothing has changed")
		write(one, "b")
		after(1, 0, "it may be being written")
		write(one, "bc")
		after(1, 0, "it was being written")
		after(1, 1, "it is written")
		write(two, "")
		after(2, 2, "the other is there, and empty")
		write(one, "d")
		f.Reading()
		after(5, 2, "somebody else has read it")
		if err := os.Remove(one); err != nil {
			t.Fatal(err)
		}
		after(5, 3, "it is gone")
		write(one, "d")
		after(5, 4, "it is back")
	})
}
