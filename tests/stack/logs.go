package stack

import "strings"

// WaitForLog waits until the process has written a text.
func (p *Process) WaitForLog(text string) {
	p.t.Helper()
	Eventually(p.t, "the log of "+p.name+" to say "+text, func() (bool, string) {
		logs := p.Logs()
		return strings.Contains(logs, text), tail(logs, 3)
	})
}
