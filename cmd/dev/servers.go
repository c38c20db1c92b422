package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	standin "github.com/alicebob/miniredis/v2/server"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"
)

func startNATS(dir string) (*server.Server, error) {
	_, port, err := splitAddress(address(4222))
	if err != nil {
		return nil, err
	}
	nats, err := server.NewServer(&server.Options{
		ServerName: "tallyroll-dev",
		Host:       "127.0.0.1", Port: port,
		JetStream: true, StoreDir: dir,
		NoSigs: true, NoLog: true,
	})
	if err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	nats.Start()
	if !nats.ReadyForConnections(startTimeout) {
		stopNATS(nats)
		return nil, fmt.Errorf("embedded NATS on port %d with its data in %s is not ready after %s", port, dir,
			startTimeout)
	}
	return nats, nil
}

func stopNATS(nats *server.Server) {
	nats.Shutdown()
	nats.WaitForShutdown()
}

type redisServer struct {
	url, about string
	uniques    bool // it hashes unique values as Redis does
	stop       func() error
}

// startRedis runs redis-server or valkey-server if it is installed, else a stand-in in this process that
// keeps nothing.
func startRedis(ctx context.Context, dir string) (*redisServer, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		program, err = exec.LookPath("valkey-server")
	}
	if err != nil {
		return startStandIn()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	addr := address(6379)
	_, port, err := splitAddress(addr)
	if err != nil {
		return nil, err
	}
	logFile := filepath.Join(dir, "redis.log")
	cmd := exec.Command(program, "--bind", "127.0.0.1", "--port", fmt.Sprint(port), "--dir", dir, "--logfile", logFile,
		"--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction")
	cmd.SysProcAttr = childAttributes()
	ended, err := startChild(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	s := &redisServer{url: "redis://" + addr + "/0", about: program, uniques: true}
	s.stop = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
			return nil
		case <-time.After(startTimeout):
			return errors.Join(fmt.Errorf("%s did not end within %s", program, startTimeout), cmd.Process.Kill())
		}
	}
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer client.Close()
	bounded, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for client.Ping(bounded).Err() != nil {
		select {
		case <-ended:
			return nil, fmt.Errorf("%s ended at once, see %s", program, logFile)
		case <-bounded.Done():
			return nil, errors.Join(fmt.Errorf("%s does not answer on %s, see %s", program, addr, logFile), s.stop())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return s, nil
}

// startChild starts a process that ends with this one, and closes ended at its end. The kernel ties the child
// to the thread that started it, so that thread waits, too.
func startChild(cmd *exec.Cmd) (ended chan struct{}, err error) {
	started := make(chan error, 1)
	ended = make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(ended)
	}()
	return ended, <-started
}

// startStandIn runs an embedded Redis stand-in. Its keys expire only when its clock is advanced.
func startStandIn() (*redisServer, error) {
	m, err := miniredis.Run()
	if err != nil {
		return nil, fmt.Errorf("embedded Redis stand-in: %w", err)
	}
	// A worker asks how the server persists, and would warn that this one does not say. It ends with the worker.
	m.Server().SetPreHook(func(c *standin.Peer, command string, args ...string) bool {
		switch {
		case command == "CONFIG":
			c.WriteMapLen(0)
		case command == "INFO" && slices.Equal(args, []string{"persistence"}):
			c.WriteBulk("# Persistence\r\naof_enabled:0\r\n")
		default:
			return false
		}
		return true
	})
	ticker := time.NewTicker(time.Second)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-ticker.C:
				m.FastForward(time.Second)
			case <-done:
				return
			}
		}
	}()
	return &redisServer{
		url: "redis://" + m.Addr() + "/0", about: "embedded stand-in: no redis-server on the PATH; its data is not " +
			"kept, and unique values are not counted",
		stop: func() error {
			ticker.Stop()
			close(done)
			m.Close()
			return nil
		},
	}, nil
}

func splitAddress(addr string) (host string, port int, err error) {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return "", 0, err
	}
	return tcp.IP.String(), tcp.Port, nil
}

// address is that of a service for others, on the host of the options.
func (o options) address(port int) string {
	_, free, _ := net.SplitHostPort(address(port))
	return net.JoinHostPort(o.host, free)
}

func address(port int) string {
	for _, p := range []int{port, 0} {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) // the program that listens there reports what is wrong
}

const startTimeout = 15 * time.Second
