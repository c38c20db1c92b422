// Package stack starts the real parts of a deployment for tests: Redis, NATS
// and the built binaries, as processes of their own, on loopback and on ports
// that nobody else uses.
//
// Every part takes a [testing.TB], is ready to use when its constructor
// returns, and is gone when the test ends, however it ends. What cannot be
// started fails the test; nothing is skipped. When a test fails, the end of
// each part's log is printed with it.
//
// Parts are stopped (SIGTERM), killed (SIGKILL), paused (SIGSTOP) and started
// again on the same port with the same data, one by one, by their own process:
// this is how the tests play crashes and stalls.
//
// Tests that leave the servers alone share them: [SharedRedis] gives each test a
// database of its own, [SharedNATS] an account.
//
// A package whose tests call [Build], [Ingest], [Query], [NATSProcess] or what is
// shared hands its TestMain to [Main], which cleans up at the end.
package stack
