// Package rejects writes and reads HITS_REJECTED, the stream of the hits that could not be counted.
//
// A reject is one message. Its subject is hits_rejected.<stream>, followed by the namespace unless that is
// tallyroll. The headers hold the reason and the hit's identity; the body is the hit's, or the whole
// message's if it was refused whole. With max_payload at 1 KiB or more every reject fits: the detail is cut,
// and a body that leaves no room for the headers is compressed. A body that does not fit even then, hardly a
// text, is cut, too.
//
// A refused hit's name is unique: the namespace, the stream, the sequence, the item, and the time at which
// the stream stored the message. A replay gives a reject the same name. When it is sent again, its name is a
// part of the subject, and the first subject is in a header.
//
// Publish may be repeated after an error: within an hour the server drops repeats, later only the reject is
// there twice. Parse reports no namespace for a message without its header.
package rejects
