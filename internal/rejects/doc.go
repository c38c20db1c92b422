// Package rejects is the form of HITS_REJECTED, the stream of the hits that could not be counted: how workers write it,
// and how the others read it.
//
// A reject is one message, or several parts if the body and the headers together are larger than the server takes.
// Its subject is hits_rejected.<stream>, with the namespace behind it unless that is tallyroll. The headers hold the
// reason and what identifies the hit; the body is that of the hit, or of the whole message if it was refused whole.
// Within 1 KiB of max_payload each reject fits: the detail is cut short and the body goes into parts.
//
// A refused hit has a name, which no other has: the namespace, the stream, the sequence, the item, and the time at
// which the stream stored the message. A reject keeps its name if a replay stores it again. When it is sent again,
// its name is a part of the subject, and the first subject is in a header.
//
// Publish returns once the stream holds all rejects. If it fails, it may be called again: within an hour the server
// drops what it holds, and later only the reject is there twice. Of a message without the namespace's header
// Parse reports no namespace: it is nobody's.
package rejects
