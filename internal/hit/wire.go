package hit

// The names by which workers and producers find each other in NATS.
const (
	// RejectedStream holds the hits that could not be counted.
	RejectedStream = "HITS_REJECTED"
	// RejectedSubject is followed by the name of the stream that a reject comes from.
	RejectedSubject = "hits_rejected."
	// WorkerDescription is the description of the consumers with which workers read.
	WorkerDescription = "tallyroll ingest"
)

// The headers of a reject.
const (
	HeaderReason   = "Tallyroll-Reason"
	HeaderDetail   = "Tallyroll-Detail"
	HeaderStream   = "Tallyroll-Stream"   // that the message was in
	HeaderSequence = "Tallyroll-Sequence" // of the message
	HeaderItem     = "Tallyroll-Item"     // index in the message
	HeaderStored   = "Tallyroll-Stored"   // when the message was: RFC 3339 with nanoseconds
	HeaderPart     = "Tallyroll-Part"     // such as 1/2, of a reject in several messages
	HeaderCounter  = "Tallyroll-Counter"  // that the message's subject gives to hits that name none
	HeaderKind     = "Tallyroll-Kind"     // what was refused, if it is no hit
	HeaderSubject  = "Tallyroll-Subject"  // of the message that was refused, by which its rules were found
)

// RedriveToken begins the part of a subject that is a reject's own when it is published again. On such a subject
// alone, HeaderSubject says by which subject the rules of the message are found.
const RedriveToken = "redrive-"
