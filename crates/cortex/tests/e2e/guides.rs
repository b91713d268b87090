//! Each guide in `docs/guides` is followed to the letter, on machines and in homes of its own: its
//! files are made, its commands typed, and what these print is what the guide shows. The text is
//! its own test; `docs/testing.md` says how a guide is written.

mod compare;
mod machines;
mod registries;
mod text;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use self::compare::Meant;
use self::machines::Machine;
use self::registries::Registries;
use self::text::{FIRST, Step};
use crate::acme::pebble::{self, Manners};
use crate::netns::lab::Lab;
use crate::project::{packaged_bundler, repository};
use crate::wait::wait_until;

/// The commands that change nothing. A reader who does not see yet what the guide shows looks
/// again, and so does the test.
const LOOKS: [&str; 19] = [
    "cat",
    "curl",
    "ls",
    "cortex apps",
    "cortex audit",
    "cortex backups\n",
    "cortex certs -",
    "cortex config -",
    "cortex domains -",
    "cortex info",
    "cortex logs",
    "cortex nodes\n",
    "cortex ps",
    "cortex releases",
    "cortex status",
    "cortex upgrade\n",
    "cortex users\n",
    "cortex whoami",
    "git log",
];
/// The time for which a reader looks.
const LOOK_DEADLINE: Duration = Duration::from_secs(60);
/// What a command prints at the beginning of a line when it fails.
const FAILURES: [&str; 3] = [" !     ", "Error: ", "curl: ("];

/// Follows a guide on machines by the names that its prompts have.
fn follow(name: &str, machines: &mut BTreeMap<&str, Machine>) {
    let path = repository("CORTEX_GUIDES", "docs/guides").join(format!("{name}.md"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let steps = text::steps(&text).unwrap_or_else(|why| panic!("{name}.md, {why}"));
    let mut meant = Meant::default();
    let mut commands = 0;
    for (line, step) in steps {
        match step {
            Step::File { path, text } => {
                let machine = machines.get_mut(FIRST).expect("a guide has a first machine");
                machine.write(&path, &meant.typed(&text));
            }
            Step::Command { machine, command, shown } => {
                let at = format!("{name}.md, line {line}: `{command}`");
                let known: Vec<_> = machines.keys().copied().collect();
                let machine = machines.get_mut(machine.as_str());
                let machine = machine.unwrap_or_else(|| panic!("{at}: machines are {known:?}"));
                obey(machine, &at, &command, &shown, &mut meant);
                commands += 1;
            }
        }
    }
    assert!(commands > 0, "{name}.md has no commands");
}

/// Types a command, and checks that it prints what is shown and ends as that says.
fn obey(machine: &mut Machine, at: &str, command: &str, shown: &[String], meant: &mut Meant) {
    let looks = LOOKS.iter().any(|look| format!("{command}\n").starts_with(look));
    let fails = shown.iter().any(|line| FAILURES.iter().any(|mark| line.starts_with(mark)));
    let typed = meant.typed(command);
    let started = Instant::now();
    let mut try_once = || {
        let printed = machine.run(&typed);
        let end = match (printed.succeeded, fails) {
            (true, true) => Err("it was to fail".to_owned()),
            (false, false) => Err("it was to succeed".to_owned()),
            _ => Ok(()),
        };
        let same = end.and_then(|()| meant.compare(shown, &printed.text));
        same.map_err(|why| format!("{at}\n{why}\n--- it printed:\n{}---", printed.text))
    };
    let mut last = Ok(());
    wait_until(at, || {
        last = try_once();
        last.is_ok() || !looks || started.elapsed() > LOOK_DEADLINE
    });
    last.unwrap_or_else(|why| panic!("{why}"));
}

/// Follows a guide for machines with these names, each a host of one network; the first is the one
/// of the bare prompt. They share their application's packages with those of other tests.
fn follow_on(name: &str, hosts: &[&'static str], variables: &[(&str, String)]) {
    let Some(lab) = Lab::of(hosts.len()) else { return };
    let _registries = (!variables.is_empty()).then(|| Registries::on(&lab.host(0).enter()));
    let machine = |(n, host): (usize, &&'static str)| {
        let prompt = if n == 0 { FIRST } else { *host };
        (prompt, Machine::start(host, &lab.host(n).enter(), variables))
    };
    follow(name, &mut hosts.iter().enumerate().map(machine).collect());
}

#[test]
fn first_deploy() {
    follow_on("first-deploy", &["one"], &[]);
}

#[test]
fn second_machine() {
    follow_on("second-machine", &["one", "two"], &[]);
}

#[test]
fn rails() {
    // Spring would leave a server behind.
    let mut variables = vec![("DISABLE_SPRING", "1".to_owned())];
    variables.extend(packaged_bundler().map(|version| ("BUNDLER_VERSION", version)));
    follow_on("rails", &["one"], &variables);
}

#[test]
fn django() {
    follow_on("django", &["one"], &Registries::variables());
}

#[test]
fn node() {
    follow_on("node", &["one"], &Registries::variables());
}

#[test]
fn teams() {
    follow_on("teams", &["one", "laptop"], &[]);
}

#[test]
fn troubleshooting() {
    follow_on("troubleshooting", &["one"], &[]);
}

#[test]
fn upgrade() {
    follow_on("upgrade", &["one"], &[]);
}

#[test]
fn secrets() {
    follow_on("secrets", &["one"], &[]);
}

#[test]
fn backup() {
    follow_on("backup", &["one"], &[]);
}

#[test]
fn domains() {
    let Some((lab, pebble)) = pebble::lab(2, &Manners::default()) else { return };
    pebble.lead("blog.example.org", &[lab.host(0), lab.host(1)]);
    let machine = |n: usize, name| {
        let trusted = [("CURL_CA_BUNDLE", pebble.root())];
        Machine::start(name, &pebble.within(lab.host(n)), &trusted)
    };
    let mut machines = BTreeMap::from([(FIRST, machine(0, "one")), ("two", machine(1, "two"))]);
    fs::copy(pebble.ca(), machines[FIRST].home().join("authority.pem")).expect("a file");
    follow("domains", &mut machines);
}
