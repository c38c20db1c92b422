// Package worker is the process that counts: it connects, finds its share of the streams, and runs the
// sessions of package consume on them. shutdown.go has the steps of its end.
//
// Run waits for Redis and NATS at start, and continues after later outages. A problem that only an operator
// can fix ends the start with an error that has the remedy. A stopped worker ends within ten seconds. It
// reads only the streams of its share, and lists new streams in Redis before any as_of passes them.
//
//	goroutine                  owns                              ended by                waited for by
//	readShare                  the list of streams, its share    the end of Run's ctx    Run
//	the status server          its listener                      the end of readShare    Run
//	files.Follow               the rules in force                the end of readShare    Run
//	the fleet's                its key and watch (fleet)         readShare, last         readShare
//	Keep, one per stream       the sessions (consume)            the share, or ctx       readShare
//	KeepClaiming               when claims are written           ctx                     readShare
//	KeepSweeping               rules that no cursor named        ctx                     readShare
//	streamCheck, one round     the check of all streams          its second              readShare
//	probe                      nothing                           its two seconds         readShare
//	systemd.Announce           what it has announced             readiness, or ctx       Run
//
// Locks guard what several of them use: in status, in streamCheck, and the worker's own mu.
package worker
