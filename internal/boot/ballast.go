package boot

// ballastBytes is how much garbage may wait beyond what Go would let wait by itself. Four times as much saved query no
// more, and took 60 MB.
const ballastBytes = 16 << 20

// ballast is held as long as the program runs.
//
//lint:ignore U1000 nobody reads it: it only takes room
var ballast []byte

// TakeBallast makes a small heap look larger, so that it is collected less often. It is for services whose requests leave
// 10 to 30 kB each: thousands of them per second have a heap of a few megabytes collected all the time, which is a sixth
// of what a total costs query. Nobody writes to the ballast, so it takes no memory itself, and a heap that is large
// already grows no further. With a higher GOGC, that one would grow, too.
func TakeBallast() { ballast = make([]byte, ballastBytes) }
