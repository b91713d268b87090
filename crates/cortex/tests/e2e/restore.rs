//! A cluster in one file: exported, lost with all its machines, and brought back to an empty one.
//! `age`, the program whose format the file has, opens it too.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::acme::pebble::go_tool;
use crate::fixtures::cluster::{await_state, cluster, first, id_of};
use crate::node::{Node, Outcome, binary, run};
use crate::outside::{Connection, Site};
use crate::project::of_files;
use crate::secrets::files_with;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "notes";
const CANARY: &str = "canary-5ad09e71c36f42b8";
const PHRASE: &str = "correct horse battery staple";
const AGE: &str = "filippo.io/age/cmd/age@v1.2.1";

/// A server that keeps what is posted to it, and knows a secret.
const SERVER: &str = include_str!("fixtures/notes.py");

fn push(node: &Node) {
    let project = node.path(NAME);
    let procfile = ("Procfile", "web: python3 server.py\n");
    let settings = ("cortex.toml", "persist = [\"kept/\"]\n");
    of_files(&project, &[procfile, ("server.py", SERVER), settings]);
    node.try_push(&project, NAME).succeeded();
}

fn through(node: &Node, host: &str) -> Site {
    Site { host: format!("{host}:{}", node.http_port), port: node.http_port }
}

fn note(node: &Node, text: &str) {
    wait_for("a note to be taken", STATE_DEADLINE, || {
        let site = through(node, "notes.localhost");
        let mut connection = Connection::open(&site).map_err(|error| error.to_string())?;
        let answer = connection.request("POST", "/", &[], text.as_bytes());
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    });
}

fn await_answer(node: &Node, host: &str, text: &str) {
    wait_for(&format!("the answer '{text}' for {host}"), STATE_DEADLINE, || {
        let answer = through(node, host).try_get("/")?;
        let good = answer.status == 200 && answer.body == text;
        if good { Ok(()) } else { Err(format!("{answer:?}\n{}", node.log())) }
    });
}

fn set_secret(node: &Node) {
    let file = node.path("variables");
    fs::write(&file, format!("TOKEN={CANARY}\n")).expect("a file");
    node.cortex(&["config", "set", "-a", NAME, "--file", shown(&file)]);
    fs::remove_file(file).expect("it is there");
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// Runs a command with a pass-phrase in the environment.
fn with_phrase(node: &Node, phrase: &str, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(binary());
    command.arg("--data-dir").arg(node.data()).args(arguments);
    command.env("CORTEX_PASSPHRASE", phrase).stdin(Stdio::null());
    run(command, &format!("cortex {}", arguments.join(" ")))
}

/// Makes a certificate of the owner's own.
fn certificate(node: &Node, domain: &str) -> [PathBuf; 2] {
    let files = [node.path("own.pem"), node.path("own.key")];
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-noenc", "-days", "30", "-newkey", "ec"]);
    command.args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=own"]);
    command.args(["-addext", &format!("subjectAltName=DNS:{domain}")]);
    command.arg("-keyout").arg(&files[1]).arg("-out").arg(&files[0]);
    run(command, "openssl req").succeeded();
    files
}

/// Opens a file with `age`, which asks for the pass-phrase on a terminal alone.
fn opened_by_age(file: &Path, phrase: &str) -> Vec<u8> {
    const DRIVE: &str = r#"
import os, pty, sys
age, file, out, phrase = sys.argv[1:]
child, terminal = pty.fork()
if child == 0:
    os.execv(age, [age, "-d", "-o", out, file])
said = b""
while b"assphrase" not in said:
    said += os.read(terminal, 1000)
os.write(terminal, phrase.encode() + b"\n")
try:
    while os.read(terminal, 1000):
        pass
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;
    let out = file.with_extension("opened");
    let mut command = Command::new("python3");
    command.args(["-c", DRIVE]).arg(go_tool("age", AGE)).arg(file).arg(&out).arg(phrase);
    run(command, "age -d").succeeded();
    let bytes = fs::read(&out).expect("age wrote it");
    fs::remove_file(out).expect("it is there");
    bytes
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn info(node: &Node) -> Value {
    serde_json::from_str(&node.cortex(&["info", "-a", NAME, "--json"])).expect("JSON")
}

#[test]
fn a_cluster_whose_machines_are_all_lost_comes_back_from_one_file() {
    let [mut one, mut two] = cluster([&[], &[]]);
    push(&one);
    set_secret(&one);
    let domain = "shop.test";
    one.cortex(&["domains", "add", domain, "-a", NAME]);
    let files = certificate(&one, domain);
    one.cortex(&["certs", "add", shown(&files[0]), shown(&files[1]), "-a", NAME]);
    one.cortex(&["users", "add", "ana", "--role", "developer", "-a", NAME]);
    one.cortex(&["teams", "add", "shop"]);
    let token = one.cortex(&["tokens", "create", "ci", "--user", "ana"]);
    note(&one, "first ");
    // The files come from the node that has them, whichever is asked.
    let holder = info(&one)["holder"].clone();
    let other = if holder == id_of(&one).as_str() { &two } else { &one };
    await_answer(other, domain, &format!("{} first ", CANARY.len()));

    let elsewhere = tempfile::tempdir().expect("a directory");
    let file = elsewhere.path().join("cluster.age");
    let exported = with_phrase(other, PHRASE, &["export", shown(&file), "--with-files"]);
    exported.succeeded().saying(&["1 application"]);
    let bytes = fs::read(&file).expect("a file");
    assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    assert!(bytes.starts_with(b"age-encryption.org/v1\n-> scrypt "));
    assert!(!holds(&bytes, CANARY) && !holds(&bytes, "first ") && !holds(&bytes, NAME));
    let clear = opened_by_age(&file, PHRASE);
    assert!(holds(&clear, CANARY) && holds(&clear, "first "), "what is searched is there");
    assert!(other.cortex(&["audit", "--json"]).contains("/v1/export"));

    for node in [&mut one, &mut two] {
        node.down();
        fs::remove_dir_all(node.data()).expect("all is lost");
    }
    let new = first(&[]);
    assert!(!new.cortex(&["apps"]).contains(NAME));
    with_phrase(&new, "another pass-phrase", &["import", shown(&file)])
        .refused()
        .saying(&["nothing was imported", "pass-phrase is wrong"]);
    let imported = with_phrase(&new, PHRASE, &["import", shown(&file)]).succeeded();
    imported.saying(&["1 application", "cortex ps"]);
    await_answer(&new, domain, &format!("{} first ", CANARY.len()));
    assert_eq!(info(&new)["holder"], id_of(&new).as_str());
    assert_eq!(new.cortex(&["config", "get", "-a", NAME, "TOKEN"]).trim(), CANARY);
    let mut apps = Command::new(binary());
    apps.arg("--data-dir").arg(new.data()).arg("apps").env("CORTEX_TOKEN", token.trim());
    assert!(run(apps, "cortex apps").succeeded().stdout.contains(NAME));
    assert!(new.cortex(&["certs", "-a", NAME]).contains(domain));
    assert!(new.cortex(&["teams"]).contains("shop"));
    let audit = new.cortex(&["audit", "--json"]);
    assert!(audit.contains("/v1/import") && audit.contains("/v1/export"), "{audit}");
    note(&new, "second ");
    await_answer(&new, domain, &format!("{} first second ", CANARY.len()));

    with_phrase(&new, PHRASE, &["import", shown(&file)]).refused().saying(&[
        "not empty",
        "it has the team shop",
        "cortex up",
    ]);
    let data = new.data();
    assert_eq!(files_with(&data, CANARY), Vec::<PathBuf>::new());
    assert!(!files_with(&data, "first ").is_empty(), "what is searched is read");
    // Others join it, and have the key with which it seals.
    let third = crate::fixtures::cluster::join(&new, &[]);
    await_state(&new, &id_of(&third), "alive");
    wait_for("the secret on the node that joined", STATE_DEADLINE, || {
        let got = third.run(&["config", "get", "-a", NAME, "TOKEN"]);
        if got.stdout.trim() == CANARY { Ok(()) } else { Err(format!("{got:?}")) }
    });
}

#[test]
fn what_cannot_be_imported_is_refused_before_anything_is_written() {
    let node = first(&[]);
    node.cortex(&["apps", "create", NAME]);
    set_secret(&node);
    let file = node.path("cluster.age");
    let phrase = node.path("phrase");
    fs::write(&phrase, format!("{PHRASE}\n")).expect("a file");
    let export = ["export", shown(&file), "--passphrase-file", shown(&phrase)];
    node.run(&export).succeeded();
    let short = with_phrase(&node, "short", &["export", shown(&file)]).refused();
    short.saying(&["12 are the least"]);
    node.run(&["export", shown(&node.path("none"))]).refused().saying(&["--passphrase-file"]);
    assert!(!node.path("none").exists() && !node.path("none.part").exists());

    let new = first(&[]);
    // What a node says of itself comes and goes.
    let keys = || {
        let all = new.cortex(&["store", "ls"]);
        let of_others = all.lines().filter(|key| !key.starts_with("node::"));
        of_others.map(String::from).collect::<Vec<_>>()
    };
    let before = keys();
    let whole = fs::read(&file).expect("a file");
    let import = |bytes: &[u8], reasons: &[&str]| {
        let damaged = new.path("damaged");
        fs::write(&damaged, bytes).expect("a file");
        let refused = with_phrase(&new, PHRASE, &["import", shown(&damaged)]).refused();
        refused.saying(&[&["nothing was imported"], reasons].concat());
    };
    import(&whole[..whole.len() - 1], &["end is missing"]);
    import(&whole[..60], &["end is missing"]);
    import(&whole[..whole.len() / 2], &["end is missing"]);
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    import(&flipped(whole.len() - 30), &["damaged"]);
    let text = String::from_utf8_lossy(&whole[..21]).replace("v1", "v2");
    import(text.as_bytes(), &["newer cortex"]);
    import(b"cortex store export 7\n", &["version 7", "newer"]);
    import(b"<html>", &["no exported store"]);
    import(b"", &["empty"]);
    assert_eq!(keys(), before);

    // What earlier versions exported, in clear, still comes in; but not by stdin, which would leave
    // it on the disk.
    let old = node.path("old");
    node.cortex(&["store", "export", shown(&old)]);
    new.run(&["import", shown(&old)]).succeeded().saying(&["1 application"]);
    assert_eq!(new.cortex(&["config", "get", "-a", NAME, "TOKEN"]).trim(), CANARY);
    assert_eq!(files_with(&new.data(), CANARY), Vec::<PathBuf>::new());
    let plain = node.path("plain");
    node.cortex(&["export", shown(&plain), "--plain"]);
    assert!(holds(&fs::read(&plain).expect("a file"), CANARY));
    new.run(&["store", "import", shown(&plain)]).refused().saying(&["cortex import"]);
}

#[test]
fn files_of_a_node_that_is_away_are_named_and_waited_for() {
    let [one, mut two] = cluster([&[], &[]]);
    let there = id_of(&two);
    push(&two);
    note(&two, "kept ");
    wait_for("the other node to know of the release", STATE_DEADLINE, || {
        let rollout = one.cortex(&["store", "get", "app::notes::rollout"]);
        if rollout.contains("\"phase\":\"done\"") { Ok(()) } else { Err(rollout) }
    });
    two.kill_nine();
    await_state(&one, &there, "down");
    let file = one.path("cluster.age");
    let exported = with_phrase(&one, PHRASE, &["export", shown(&file), "--with-files"]);
    exported.succeeded().saying(&["files that notes keeps", &there, "does not run"]);
    let new = first(&[]);
    let here = id_of(&new);
    let imported = with_phrase(&new, PHRASE, &["import", shown(&file)]).succeeded();
    imported.saying(&["waits for them", &format!("cortex pin {NAME} {here} --without-files")]);
    let waiting = format!("waiting: {there} holds its data");
    wait_for("it to wait", STATE_DEADLINE, || {
        let state = info(&new)["state"].to_string();
        if state.contains(&waiting) { Ok(()) } else { Err(state) }
    });
    let kept = new.data().join("apps").join(NAME).join("persist/kept");
    fs::create_dir_all(&kept).expect("a directory");
    let source = two.data().join("apps").join(NAME).join("persist/kept/notes");
    fs::copy(source, kept.join("notes")).expect("a copy");
    new.run(&["pin", NAME, &here, "--without-files"]).succeeded();
    await_answer(&new, "notes.localhost", "0 kept ");
}

/// Types answers at a terminal; returns what it showed and whether the command succeeded.
fn at_a_terminal(node: &Node, answers: &[&str], arguments: &[&str]) -> Outcome {
    const DRIVE: &str = r#"
import os, pty, sys
count = int(sys.argv[1])
answers, command = sys.argv[2:2 + count], sys.argv[2 + count:]
child, terminal = pty.fork()
if child == 0:
    os.execv(command[0], command)
said = b""
def listen():
    global said
    try:
        more = os.read(terminal, 1000)
    except OSError:
        more = b""
    said += more
    return more
for asked, answer in enumerate(answers):
    # A question may come together with the end of the line before it.
    while said.count(b": ") <= asked and listen():
        pass
    os.write(terminal, answer.encode() + b"\n")
    # The end of the line is all that is shown of it.
    lines = said.count(b"\n")
    while said.count(b"\n") == lines and listen():
        pass
while listen():
    pass
sys.stdout.buffer.write(said)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;
    let mut command = Command::new("python3");
    command.args(["-c", DRIVE, &answers.len().to_string()]).args(answers).arg(binary());
    command.arg("--data-dir").arg(node.data()).args(arguments);
    run(command, &format!("cortex {}", arguments.join(" ")))
}

#[test]
fn a_terminal_is_asked_for_the_pass_phrase_twice_and_shows_nothing_of_it() {
    let node = first(&[]);
    let file = node.path("cluster.age");
    let export = ["export", shown(&file)];
    let typo = at_a_terminal(&node, &[PHRASE, "correct horse battery stapel"], &export);
    assert!(!typo.status.success() && typo.stdout.contains("not the same"), "{typo:?}");
    assert!(!file.exists());
    let exported = at_a_terminal(&node, &[PHRASE, PHRASE], &export).succeeded();
    assert!(exported.stdout.contains("Again: ") && exported.stdout.contains("0 applications"));
    let imported = at_a_terminal(&first(&[]), &[PHRASE], &["import", shown(&file)]).succeeded();
    for shown in [typo.stdout, exported.stdout, imported.stdout] {
        assert!(!shown.contains("battery"), "{shown}");
    }
}

/// An import that is cut leaves nothing that starts; the same file goes on, and no other does.
#[test]
fn an_import_that_was_cut_goes_on_with_the_same_file_alone() {
    let node = first(&[]);
    push(&node);
    note(&node, "first ");
    let [plain, other] = ["plain", "other"].map(|name| node.path(name));
    node.cortex(&["export", shown(&plain), "--plain", "--with-files"]);
    node.cortex(&["teams", "add", "shop"]);
    node.cortex(&["export", shown(&other), "--plain", "--with-files"]);
    let whole = fs::read(&plain).expect("a file");
    let hash = blake3::hash(&whole).to_hex();
    let cut = node.path("cut");
    fs::write(&cut, &whole[..whole.len() - 20]).expect("a file");

    let new = first(&[]);
    let mut curl = Command::new("curl");
    curl.arg("--silent").arg("--unix-socket").arg(new.data().join("sockets/api"));
    curl.arg("--data-binary").arg(format!("@{}", cut.display()));
    curl.arg(format!("http://cortex/v1/import?export={hash}"));
    let answer = run(curl, "curl /v1/import").succeeded().stdout;
    assert!(answer.contains("its end is missing") && answer.contains("same file"), "{answer}");
    assert!(new.cortex(&["apps"]).contains(NAME), "what came stays");
    assert!(new.rows(NAME).is_empty(), "nothing starts from a half");
    new.run(&["import", shown(&other)]).refused().saying(&["another file was cut"]);
    new.run(&["import", shown(&plain)]).succeeded().saying(&["1 application"]);
    await_answer(&new, "notes.localhost", "0 first ");
    new.run(&["import", shown(&plain)]).refused().saying(&["not empty"]);
}
