package window

// ReadInOrder is the method, for tests of what comes before what.
var ReadInOrder = (*Store).readInOrder
