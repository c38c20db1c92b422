package source

import "strings"

// The reply subject of a delivered message is its position. This parser reads it as the client library's
// Metadata does, but without an allocation per message, which took 8 % of a worker's time.
//
//	$JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<time>.<pending>
//	$JS.ACK.<domain>.<account>.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<time>.<pending>[.…]
const (
	replyPrefix = "$JS.ACK."
	shortReply  = 7 // tokens after the prefix
	longReply   = 9 // tokens after the prefix, at least
)

// parseReply returns the numbers of a delivery.
func parseReply(reply string) (d Delivery, ok bool) {
	rest, ok := strings.CutPrefix(reply, replyPrefix)
	if !ok {
		return d, false
	}
	skip := 3 // stream, consumer, deliveries
	switch tokens := strings.Count(rest, ".") + 1; {
	case tokens >= longReply:
		skip = 5
	case tokens != shortReply:
		return d, false
	}
	for range skip {
		_, rest, _ = strings.Cut(rest, ".")
	}
	for _, to := range []*uint64{&d.Seq, &d.Nth} {
		*to, rest, ok = cutNumber(rest)
		if !ok {
			return d, false
		}
	}
	stored, _, ok := cutNumber(rest)
	d.Stored = int64(stored)
	return d, ok
}

func cutNumber(text string) (n uint64, rest string, ok bool) {
	token, rest, _ := strings.Cut(text, ".")
	if len(token) == 0 || len(token) > 19 { // 19 digits fit
		return 0, "", false
	}
	for i := range len(token) {
		digit := token[i] - '0'
		if digit > 9 {
			return 0, "", false
		}
		n = n*10 + uint64(digit)
	}
	return n, rest, true
}
