package deploy_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func TestNATSConfig(t *testing.T) {
	monitor := stack.FreePort(t)
	// /data is the container's volume; here the store is the test's own.
	text, store := read(t, filepath.Join(root(t), "deploy/nats.conf")), t.TempDir()
	here := strings.Replace(text, "store_dir: /data", fmt.Sprintf("store_dir: %q", store), 1)
	if here == text {
		t.Fatal("deploy/nats.conf does not keep its store in /data, the volume of compose.yml")
	}
	file := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(file, []byte(here), 0o600))
	n := stack.NATSProcess(t, "--config", file, "--http_port", strconv.Itoa(monitor))
	require.EqualValues(t, 2<<20, n.Conn().MaxPayload(), "max_payload")
	base := fmt.Sprintf("http://127.0.0.1:%d", monitor)
	status, body, err := stack.Do(http.MethodGet, base+"/jsz", nil)
	var jsz struct {
		Config struct {
			MaxStorage   int64         `json:"max_storage"`
			SyncInterval time.Duration `json:"sync_interval"`
			SyncAlways   bool          `json:"sync_always"`
		} `json:"config"`
	}
	if err == nil {
		err = json.Unmarshal(body, &jsz)
	}
	c := jsz.Config
	if err != nil || status != http.StatusOK || c.MaxStorage != 20e9 && c.MaxStorage != 20<<30 || !c.SyncAlways && (c.SyncInterval <= 0 || c.SyncInterval > time.Second) {
		t.Errorf("JetStream has %+v (%d %v), want 20 GB and a sync interval of a second or less", c, status, err)
	}
	if status, body, err = stack.Do(http.MethodGet, base+"/healthz", nil); err != nil || status != http.StatusOK {
		t.Errorf("/healthz, which compose asks, answers %d %s %v", status, body, err)
	}
}
