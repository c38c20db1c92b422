package stack

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Redis is killed in the middle of writing a transaction, and later once more.
func TestTornAppendOnlyFile(t *testing.T) {
	s := Redis(t)
	count := func(key string) {
		t.Helper()
		if _, err := s.Client().TxPipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Incr(t.Context(), key)
			p.Set(t.Context(), key+":place", 1, 0)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	count("torn")
	s.Kill()
	files, err := filepath.Glob(filepath.Join(s.Dir(), "appendonlydir", "*.incr.aof"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	info, err := os.Stat(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(files[0], info.Size()-20); err != nil { // EXEC, and a piece of SET
		t.Fatal(err)
	}
	s.Start()
	count("next")
	s.Kill()
	s.Start()
	if n, err := s.Client().Exists(t.Context(), "torn").Result(); n != 0 || err != nil {
		t.Fatalf("the torn transaction has been run in part: %d, %v", n, err)
	}
	if n, err := s.Client().Get(t.Context(), "next").Int(); n != 1 || err != nil {
		t.Fatalf("the next transaction counted %d, %v", n, err)
	}
}
