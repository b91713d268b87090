//! Certificates that the cluster orders by itself, at a real authority over real ports: nobody does
//! anything but declare a domain.

pub mod pebble;
mod platform;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use model::{CertificateName, NodeId};
use serde_json::{Value, json};

use self::pebble::{Manners, Pebble, lab};
use crate::fixtures::cluster::{await_acquaintance, id_of, invitation};
use crate::netns::lab::{Host, Lab};
use crate::node::Node;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

const APP: &str = "blog";

/// Pushes an application that answers every name that leads to it.
fn push(node: &Node) {
    let project = node.path("site");
    fs::create_dir_all(&project).expect("a directory");
    fs::write(project.join("index.html"), "<p>hello</p>").expect("a file");
    let server = "web: python3 -m http.server $PORT --bind $HOST\n";
    fs::write(project.join("Procfile"), server).expect("a file");
    node.push(&project, APP);
}

fn add(node: &Node, name: &str) {
    node.cortex(&["domains", "add", name, "-a", APP]);
}

/// Returns the record of a name's order.
fn order(node: &Node, name: &str) -> Option<Value> {
    opened(node, &format!("acme::order::{name}"))
}

fn certificate(node: &Node, name: &str) -> Option<Value> {
    opened(node, &format!("cert::{name}"))
}

/// Returns a record that is sealed in the store, as an export has it.
fn opened(node: &Node, key: &str) -> Option<Value> {
    let exported = node.run(&["store", "export", "-", "--prefix", key]).succeeded().stdout;
    let record = &exported[exported.find("{\"")?..];
    let mut values = serde_json::Deserializer::from_str(record).into_iter();
    Some(values.next().expect("a record").expect("JSON"))
}

/// Returns the first certificate of a name's chain.
fn leaf(node: &Node, name: &str) -> String {
    let record = certificate(node, name).expect("it has one");
    let chain = record["chain"].as_str().expect("a chain").to_owned();
    let end = "-----END CERTIFICATE-----\n";
    chain[..chain.find(end).expect("an end") + end.len()].to_owned()
}

fn two_nodes(lab: &Lab, pebble: &Pebble) -> [Node; 2] {
    let one = pebble.node(lab.host(0), &[]);
    let join = invitation(&one, &[]);
    let two = pebble.node_without(lab.host(1), &["--join", &join]);
    await_acquaintance(&[&one, &two]);
    [one, two]
}

/// Returns a name that this one of the nodes orders for.
fn name_ordered_by(nodes: [&Node; 2], which: usize, word: &str) -> String {
    let ids: Vec<NodeId> = nodes.iter().map(|node| id_of(node).parse().expect("an id")).collect();
    let others: BTreeSet<NodeId> = ids.iter().cloned().collect();
    let mut names = (0..).map(|n| format!("{word}{n}.test"));
    let is_first = |name: &String| {
        let name: CertificateName = name.parse().expect("a name");
        acme_core::turn::position(&name.token(), &ids[which], &others, 0) == 0
    };
    names.find(is_first).expect("half of all names")
}

#[test]
fn a_declared_domain_becomes_https_and_is_renewed_when_its_authority_says_so() {
    let manners = Manners { nonces_refused: 30, blocked: &["blocked.test"], ..Manners::default() };
    let Some((lab, pebble)) = lab(1, &manners) else { return };
    let host = lab.host(0);
    let mut node = pebble.node(host, &["--acme-contact", "ana@example.org"]);
    push(&node);
    // It leads elsewhere, so no order is spent on it.
    pebble.lead("elsewhere.test", &[lab.host(1)]);
    add(&node, "elsewhere.test");
    pebble.lead("blog.test", &[host]);
    add(&node, "blog.test");
    pebble.await_https(host, "blog.test");
    assert_eq!((pebble.orders(), pebble.accounts()), (1, 1), "{}", pebble.log());
    let redirect =
        pebble.visit(host, &["-o", "/dev/null", "-w", "%{redirect_url}", "http://blog.test/x"]);
    assert_eq!(redirect.stdout, "https://blog.test/x");

    // The authority wants another one at once; a node asks when it starts.
    let first = leaf(&node, "blog.test");
    let window = json!({"start": "2025-01-01T00:00:00Z", "end": "2025-01-02T00:00:00Z"});
    pebble.suggest(
        &first,
        &json!({"suggestedWindow": window, "explanationURL": "https://why.test/"}),
    );
    node.down();
    node.up();
    wait_for("another certificate", STATE_DEADLINE, || {
        let record = || order(&node, "blog.test").unwrap_or_default().to_string();
        if leaf(&node, "blog.test") == first { Err(record()) } else { Ok(()) }
    });
    pebble.await_https(host, "blog.test");
    wait_until("the end of the order", || order(&node, "blog.test").unwrap()["active"] == false);
    assert_eq!(pebble.orders(), 2, "{}", order(&node, "blog.test").unwrap_or_default());
    assert!(pebble.log().contains("is a replacement of"), "{}", pebble.log());

    // What it refuses is said in its own words, with what to do, and is not asked for again soon.
    pebble.lead("blocked.test", &[host]);
    add(&node, "blocked.test");
    wait_for("the refusal", STATE_DEADLINE, || {
        let record = order(&node, "blocked.test").unwrap_or_default();
        match record["error"]["kind"].as_str() {
            Some("rejectedIdentifier") => Ok(()),
            _ => Err(record.to_string()),
        }
    });
    assert!(certificate(&node, "elsewhere.test").is_none());
    assert!(order(&node, "elsewhere.test").is_none());
    assert_eq!((pebble.orders(), pebble.accounts()), (2, 1), "{}", pebble.log());
}

#[test]
fn the_node_that_is_asked_need_not_be_the_one_that_orders() {
    let Some((lab, pebble)) = lab(2, &Manners::default()) else { return };
    let [one, two] = two_nodes(&lab, &pebble);
    push(&one);
    // Each name leads to the node that does not order for it.
    for which in [0, 1] {
        let name = name_ordered_by([&one, &two], which, "cross");
        pebble.lead(&name, &[lab.host(1 - which)]);
        add(&one, &name);
        pebble.await_https(lab.host(2), &name);
        let orderer = order(&one, &name).expect("it was ordered")["node"].clone();
        assert_eq!(orderer, id_of([&one, &two][which]));
    }
    assert_eq!((pebble.orders(), pebble.accounts()), (2, 1), "{}", pebble.log());
    // Both nodes answer for a name that leads to both.
    let both = name_ordered_by([&one, &two], 0, "both");
    pebble.lead(&both, &[lab.host(0), lab.host(1)]);
    add(&two, &both);
    for host in [lab.host(0), lab.host(1)] {
        wait_for("the certificate on both nodes", STATE_DEADLINE, || {
            let to = format!("{both}:443:{}", host.address);
            let url = format!("https://{both}/");
            let outcome = pebble.visit(lab.host(2), &["--fail", "--resolve", &to, &url]);
            if outcome.status.success() { Ok(()) } else { Err(outcome.stderr) }
        });
    }
    assert_eq!(pebble.orders(), 3, "{}", pebble.log());
}

#[test]
fn an_order_outlives_the_node_that_made_it() {
    // The authority takes its time, so that there is an order to lose a node in.
    let Some((lab, pebble)) = lab(2, &Manners { sleeps: 8, ..Manners::default() }) else { return };
    let [mut one, two] = two_nodes(&lab, &pebble);
    push(&two);
    let name = name_ordered_by([&one, &two], 0, "lost");
    // Strangers find the node that stays.
    pebble.lead(&name, &[lab.host(1)]);
    add(&two, &name);
    wait_for("an order under way", STATE_DEADLINE, || {
        let record = order(&two, &name).unwrap_or_default();
        if record["url"].is_string() { Ok(()) } else { Err(record.to_string()) }
    });
    one.kill_nine();
    pebble.await_https(lab.host(2), &name);
    assert!(pebble.orders() <= 2, "{}", pebble.log());
    let record = order(&two, &name).expect("it was ordered");
    assert_eq!(record["node"], id_of(&two), "the other node ended it");
}

#[test]
fn nodes_that_do_not_hear_of_each_other_answer_for_each_other() {
    let Some((lab, pebble)) = lab(2, &Manners::default()) else { return };
    let [one, two] = two_nodes(&lab, &pebble);
    push(&one);
    let name = "apart.test";
    add(&one, name);
    wait_for("the other node to hear of the domain", STATE_DEADLINE, || {
        let spec = two.run(&["store", "get", &format!("app::{APP}::spec")]).stdout;
        if spec.contains(name) { Ok(()) } else { Err(spec) }
    });
    for node in [&one, &two] {
        wait_for("the account on each side", STATE_DEADLINE, || {
            let shown = node.cortex(&["certs", "authority", "--json"]);
            if shown.contains("\"account\": \"ready\"") { Ok(()) } else { Err(shown) }
        });
    }
    // The authority reaches both, and asks whichever it likes.
    lab.host(0).cut_off(&[lab.host(1)]);
    pebble.lead(name, &[lab.host(0), lab.host(1)]);
    for node in [&one, &two] {
        wait_for("a certificate on each side", STATE_DEADLINE, || {
            certificate(node, name).ok_or_else(|| order(node, name).unwrap_or_default().to_string())
        });
    }
    assert_eq!(pebble.orders(), 2, "{}", pebble.log());
    [lab.host(0), lab.host(1)].into_iter().for_each(Host::hear_all);
    wait_until("one certificate for all", || leaf(&one, name) == leaf(&two, name));
    pebble.await_https(lab.host(2), name);
    assert_eq!((pebble.orders(), pebble.accounts()), (2, 1));
}

#[test]
fn addresses_stars_and_names_without_port_80_have_their_ways() {
    let manners = Manners { short_lived: true, ..Manners::default() };
    let Some((lab, pebble)) = lab(1, &manners) else { return };
    let host = lab.host(0);
    let public = format!("--public={}", host.address);
    // Nobody is let in at port 80.
    host.refuse_port(80);
    let node = pebble.node(host, &[&public]);
    push(&node);
    pebble.lead("secure.test", &[host]);
    add(&node, "secure.test");
    pebble.await_https(host, "secure.test");
    let by = |name: &str| order(&node, name).expect("it was ordered")["challenge"].clone();
    assert_eq!(by("secure.test"), "tls-alpn-01");
    let outcome = node.run(&["store", "get", "acme::challenge::secure.test"]);
    assert!(!outcome.status.success(), "the challenge is taken back");

    // The machine's own address: for six days, and renewed in time by itself.
    let first = wait_for("a certificate for the address", STATE_DEADLINE, || {
        certificate(&node, &host.address).ok_or_else(|| "none".to_string())
    });
    let lifetime = first["not_after"].as_u64().unwrap() - first["not_before"].as_u64().unwrap();
    assert!(lifetime / 1000 <= pebble::SHORT_SECONDS + 1, "{lifetime}");
    let url = format!("https://{}/", host.address);
    wait_for("an answer at the address", STATE_DEADLINE, || {
        let outcome = pebble.visit(host, &[&url]);
        if outcome.status.success() { Ok(()) } else { Err(outcome.stderr) }
    });

    // A star is proven in DNS alone, by a program that makes the record.
    let hook = hook(&node, &pebble);
    pebble.lead("a.wild.test", &[host]);
    add(&node, "*.wild.test");
    let agree = ["certs", "agree", "--directory", &pebble.directory(), "--ca", &pebble.ca()];
    let hook = hook.display().to_string();
    node.cortex(&[&agree[..], &["--yes", "--dns-hook", &hook]].concat());
    pebble.await_https(host, "a.wild.test");
    assert_eq!(by("*.wild.test"), "dns-01");
    let said = fs::read_to_string(node.path("hook.log")).expect("it ran");
    assert!(said.starts_with("present _acme-challenge.wild.test. "), "{said}");
    wait_until("the record to be taken away", || {
        fs::read_to_string(node.path("hook.log")).is_ok_and(|said| said.contains("cleanup "))
    });
    wait_until("another certificate for the address", || {
        certificate(&node, &host.address).is_some_and(|now| now["not_after"] != first["not_after"])
    });
}

/// Writes a program that makes and removes records in the DNS of the test.
fn hook(node: &Node, pebble: &Pebble) -> PathBuf {
    let (path, log) = (node.path("hook"), node.path("hook.log"));
    let body = r#"{\"host\": \"$2\", \"value\": \"$3\"}"#;
    let script = [
        "#!/bin/sh".into(),
        "set -e".into(),
        format!("echo \"$@\" >> {}", log.display()),
        "case $1 in present) path=set-txt;; *) path=clear-txt;; esac".into(),
        format!("curl -sS --fail -X POST -d \"{body}\" {}/$path", pebble.dns_management()),
    ];
    let script = script.join("\n");
    fs::write(&path, script).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    path
}

#[test]
fn nobody_agreed_so_nothing_is_ordered() {
    let Some((lab, pebble)) = lab(1, &Manners::default()) else { return };
    let host = lab.host(0);
    let node = pebble.node_without(host, &[]);
    push(&node);
    pebble.lead("blog.test", &[host]);
    add(&node, "blog.test");
    let shown = node.cortex(&["domains", "--json", "-a", APP]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let said = shown["domains"][0]["certificate"]["state"].as_str().expect("a state");
    assert!(said.contains("cortex certs agree"), "{shown}");
    assert!(!pebble.log().contains("POST /sign-me-up"), "{}", pebble.log());

    // Without a yes it only says what there is to agree to.
    let agree = ["certs", "agree", "--directory", &pebble.directory(), "--ca", &pebble.ca()];
    node.run(&agree).refused().saying(&["--yes"]);
    assert!(!pebble.log().contains("POST /sign-me-up"));
    node.cortex(&[&agree[..], &["--yes"]].concat());
    pebble.await_https(host, "blog.test");
    let shown = node.cortex(&["domains", "-a", APP]);
    assert!(shown.contains("blog.test") && shown.contains("Pebble"), "{shown}");
    assert_eq!(pebble.accounts(), 1);
}
