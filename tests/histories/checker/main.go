// Checks recorded histories of saves and reads.
//
//	histories [-pictures DIR] FILE…
//
// Prints a JSON line for each broken promise, and one for each file. Exit code 0: nothing is broken, 1: something is,
// 2: a history cannot be read.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// One check takes milliseconds; after this time Porcupine has no verdict.
const patience = 10 * time.Second

func main() {
	pictures := flag.String("pictures", "", "where to draw what is not linearizable (default: beside the history)")
	flag.Parse()
	printer, code := json.NewEncoder(os.Stdout), 0
	for _, path := range flag.Args() {
		history, err := ReadHistory(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		directory := *pictures
		if directory == "" {
			directory = filepath.Dir(path)
		}
		violations := Check(history, filepath.Join(directory, strings.TrimSuffix(filepath.Base(path), ".jsonl")))
		for _, violation := range violations {
			_ = printer.Encode(violation)
		}
		_ = printer.Encode(map[string]any{"file": path, "operations": len(history.Ops), "violations": len(violations)})
		if len(violations) > 0 {
			code = 1
		}
	}
	os.Exit(code)
}

// Check checks a history, thread by thread. Pictures begin with this path.
func Check(history *History, picture string) []Violation {
	var found []Violation
	for _, name := range threads(history) {
		rules := rulesOf(history, name)
		found = append(found, rules.check()...)
		if rules.line == nil {
			continue
		}
		for _, view := range Views(history.Setup, rules.line, rules.ops) {
			found = append(found, linearizable(name, view, picture)...)
		}
	}
	return found
}

func threads(history *History) (names []string) {
	seen := map[string]bool{}
	for _, final := range history.Finals {
		if !seen[final.Thread] {
			seen[final.Thread] = true
			names = append(names, final.Thread)
		}
	}
	for _, op := range history.Ops {
		if !seen[op.Thread] {
			seen[op.Thread] = true
			names = append(names, op.Thread)
		}
	}
	return names
}

func rulesOf(history *History, thread string) *Rules {
	rules := &Rules{setup: history.Setup, thread: thread, losses: history.Losses, setBack: history.SetBack, times: map[string]int{}}
	for _, op := range history.Ops {
		if op.Thread == thread && len(op.Attempts) > 0 {
			rules.ops = append(rules.ops, op)
		}
	}
	for _, final := range history.Finals {
		if final.Thread == thread {
			rules.finals = append(rules.finals, final)
		}
	}
	for _, finding := range history.Findings {
		if name, _, _ := strings.Cut(finding.Thread, "@@"); name == thread || name == "" && thread == threads(history)[0] {
			rules.findings = append(rules.findings, finding)
		}
	}
	for _, orphan := range history.Orphans {
		if orphan.Thread == thread {
			rules.orphans = append(rules.orphans, orphan)
		}
	}
	return rules
}

func linearizable(thread string, view View, picture string) []Violation {
	operations, contradiction := narrow(sparse(view.Ops))
	result, info := porcupine.CheckOperationsVerbose(Thread, operations, patience)
	if result == porcupine.Ok {
		return nil
	}
	violation := Violation{Rule: "order", Thread: thread, Text: view.Name + ": not linearizable; "}
	switch {
	case contradiction != "":
		violation.Text += contradiction
	case result == porcupine.Unknown:
		violation.Rule, violation.Text = "undecided", view.Name+": no verdict in time"
	default:
		violation.Text += stuck(operations, info)
	}
	name := strings.NewReplacer(" ", "-", ",", "").Replace(fmt.Sprintf("%s-%s-%s.html", picture, thread, view.Name))
	if err := porcupine.VisualizePath(Thread, info, name); err == nil {
		violation.Picture = name
	}
	return []Violation{violation}
}

// stuck names the operation that ended first among those that no order explains.
func stuck(operations []porcupine.Operation, info porcupine.LinearizationInfo) string {
	longest := 0
	var placed map[int]bool
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, partial := range partition {
			if len(partial) < longest {
				continue
			}
			longest, placed = len(partial), map[int]bool{}
			for _, operation := range partial {
				placed[operation.Input.(Event).Number] = true
			}
		}
	}
	var first *porcupine.Operation
	for number := range operations {
		operation := &operations[number]
		if !placed[operation.Input.(Event).Number] && (first == nil || operation.Return < first.Return) {
			first = operation
		}
	}
	if first == nil {
		return "no order explains it"
	}
	return fmt.Sprintf("no order explains %q (client %d)", first.Input.(Event).Text, first.ClientId)
}
