// Package worker is the process that counts: it connects, finds its share of the streams, and lets package
// consume keep each of them flowing.
//
// # What it promises
//
// Run waits for Redis and NATS at start, and goes on when they come back later. What only a person can mend
// ends the start with an error that names what to do. A worker that is told to stop ends within ten seconds.
//
// A worker reads the streams of its share and no others. It lists new streams in Redis before any as_of passes
// them.
//
// # Goroutines
//
//	goroutine                  owns                              ended by                waited for by
//	readShare                  the list of streams, its share    the end of Run's ctx    Run
//	the status server          its listener                      the end of readShare    Run
//	files.Follow               the rules in force                the end of readShare    Run
//	the fleet's                its key and watch (fleet)         readShare, last         readShare
//	Keep, one per stream       the sessions (consume)            the share, or ctx       readShare
//	KeepClaiming               when claims are written           ctx                     readShare
//	KeepSweeping               rules that no cursor named        ctx                     readShare
//	census, one round          the look at all streams           its second              readShare
//	probe                      nothing                           its two seconds         readShare
//
// State that several of them use has a lock beside it: status, census and the worker's own mu.
//
// # Shutdown
//
// shutdown.go lists the steps in order, and how long each may take.
package worker
