package stack

import (
	"net/http"
	"os/exec"
	"strconv"
	"testing"
)

// PrometheusServer is a prometheus process.
type PrometheusServer struct{ *Process }

// Prometheus starts prometheus from the PATH with a configuration file. It asks for native histograms.
// Without one the test fails: ask [HasPrometheus] first.
func Prometheus(t testing.TB, config string) *PrometheusServer {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("no prometheus on the PATH: `make prometheus` installs it")
	}
	data := t.TempDir()
	p := &PrometheusServer{}
	p.Process = newProcess(t, "prometheus", path, func(port int) (args, env []string) {
		return []string{"--config.file=" + config, "--enable-feature=native-histograms", "--storage.tsdb.path=" + data, "--web.listen-address=127.0.0.1:" + strconv.Itoa(port)}, nil
	})
	p.ready = func() (bool, string) {
		status, body, err := Do(http.MethodGet, p.URL()+"/-/ready", nil)
		if err != nil {
			return false, err.Error()
		}
		return status == http.StatusOK, string(body)
	}
	p.Start()
	return p
}

// HasPrometheus reports whether prometheus and promtool are on the PATH.
func HasPrometheus() bool {
	for _, name := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(name); err != nil {
			return false
		}
	}
	return true
}

// URL is the address of its HTTP server.
func (p *PrometheusServer) URL() string { return "http://" + p.Addr() }
