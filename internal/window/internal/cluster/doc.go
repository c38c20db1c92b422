// Package cluster sends commands to the server that must run them: one Redis, Sentinel's master, or a node of
// a Redis Cluster. It gives three things that the client library does not:
//
//   - Reads in an order. ReadInOrder promises that what first reads is never newer than what then reads.
//   - Transactions on watched keys in two round trips, without retries and redirects (WatchedTx).
//   - Replies as they came over the wire (Reply), and errors that name another program's key (ForeignError).
package cluster
