package web

// ballastBytes is additional garbage that may wait. Four times as much saved query no more, and took 60 MB.
const ballastBytes = 16 << 20

// ballast is held as long as the program runs.
//
//lint:ignore U1000 it is never read: it only takes memory
var ballast []byte

// AllocateBallast makes a small heap look larger, so that it is collected less often. It is for services
// whose requests leave 10 to 30 kB each: thousands per second keep a heap of a few megabytes in constant
// collection, a sixth of what a total costs query. Nothing writes to the ballast, so it takes no memory, and
// a large heap grows no further. With a higher GOGC it would.
func AllocateBallast() { ballast = make([]byte, ballastBytes) }
