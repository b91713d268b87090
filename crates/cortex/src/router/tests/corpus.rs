//! Conformance and request smuggling: each file in `corpus/` is one case, as its README says.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::InstanceState::Ready;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::world::{Backend, Client, DEADLINE, World, ok};

/// Fewer files than once were written would pass unnoticed.
const REQUESTS_MIN: usize = 300;
const ANSWERS_MIN: usize = 60;
/// Written at once by the client of a case.
const CASE_BYTES_MAX: usize = 1 << 20;

const HEAD_ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";

/// One file.
struct Case {
    name: String,
    /// The bytes after `>` and after `<`.
    sent: Vec<u8>,
    got: Vec<u8>,
    /// The words after `=`.
    outcome: Vec<String>,
    /// What follows a `=` line and a colon.
    body: Option<Vec<u8>>,
}

fn cases(folder: &str, min: usize) -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/router/tests/corpus").join(folder);
    let entries = std::fs::read_dir(&root).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= min, "{} files in {folder}", paths.len());
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Case {
    let text = std::fs::read_to_string(path).unwrap();
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    assert!(text.starts_with("# "), "{name} does not say what it is about");
    let mut case = Case { name, sent: vec![], got: vec![], outcome: vec![], body: None };
    for line in text.lines().skip(1) {
        match line.split_once(' ') {
            Some((">", bytes)) => case.sent.extend(unescape(bytes)),
            Some(("<", bytes)) => case.got.extend(unescape(bytes)),
            Some(("=", words)) => {
                let (words, body) = words.split_once(": ").unwrap_or((words, ""));
                case.outcome.extend(words.split(' ').map(str::to_owned));
                case.body = Some(unescape(body));
            }
            _ => panic!("{}: {line}", case.name),
        }
    }
    assert!(!case.outcome.is_empty(), "{} expects nothing", case.name);
    case
}

fn unescape(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.chars());
    while let Some(c) = rest.next() {
        if c != '\\' {
            bytes.push(u8::try_from(c).unwrap());
            continue;
        }
        match rest.next().unwrap() {
            'r' => bytes.push(b'\r'),
            'n' => bytes.push(b'\n'),
            't' => bytes.push(b'\t'),
            '\\' => bytes.push(b'\\'),
            'x' => {
                let digits: String = rest.by_ref().take(2).collect();
                bytes.push(u8::from_str_radix(&digits, 16).unwrap());
            }
            '*' => {
                let count: String = rest.by_ref().take_while(|c| *c != ';').collect();
                let part: String = rest.by_ref().take_while(|c| *c != ';').collect();
                bytes.extend(unescape(&part).repeat(count.parse().unwrap()));
            }
            other => panic!("\\{other} is no escape"),
        }
    }
    bytes
}

/// Answers every request and keeps all that came, in whatever framing the client chose.
async fn recording(all: &Arc<Mutex<Vec<u8>>>) -> Backend {
    let all = all.clone();
    Backend::start(move |mut client: Client| {
        let all = all.clone();
        async move {
            loop {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = client.0.read_u8().await else { return };
                    all.lock().unwrap().push(byte);
                    request.push(byte);
                }
                let head = String::from_utf8_lossy(&request).to_lowercase();
                let length = head.split("content-length: ").nth(1);
                let length = length.map(|rest| rest.split("\r\n").next().unwrap().parse());
                let (mut left, chunked): (usize, _) = match length {
                    Some(length) => (length.unwrap(), false),
                    None => (0, head.contains("transfer-encoding: chunked")),
                };
                let start = request.len() - b"\r\n".len();
                while left > 0 || (chunked && !is_whole(&request[start..])) {
                    let Ok(byte) = client.0.read_u8().await else { return };
                    all.lock().unwrap().push(byte);
                    request.push(byte);
                    left = left.saturating_sub(1);
                }
                let is_head = head.starts_with("head ");
                let answer = if is_head { HEAD_ANSWER.into() } else { ok("hello") };
                if client.0.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    })
    .await
}

/// Chunks and what trails them, behind the end of a line.
fn is_whole(body: &[u8]) -> bool {
    body.ends_with(b"\r\n\r\n") && body.windows(5).any(|end| end == b"\r\n0\r\n")
}

/// The request's number is another each time.
fn without_request_id(bytes: &[u8]) -> String {
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    let mut parts = text.split("X-Request-Id: ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (id, rest) = part.split_once("\r\n").unwrap_or((part, ""));
        let own = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        out += &format!("X-Request-Id: {}\r\n{rest}", if own { "ID" } else { id });
    }
    out
}

async fn run_request(world: &World, all: &Mutex<Vec<u8>>, case: &Case) -> Result<(), String> {
    all.lock().unwrap().clear();
    let mut client = world.connect().await;
    assert!(case.sent.len() <= CASE_BYTES_MAX);
    // Whoever is refused may be cut off while it still sends.
    client.0.write_all(&case.sent).await.ok();
    let mut seen = Vec::new();
    let mut closes = false;
    for word in &case.outcome {
        match word.as_str() {
            "closed" => closes = true,
            "ended" => {}
            status => {
                let head_only = status.ends_with('h');
                let reply = client.try_reply(head_only).await;
                let reply = reply.map_err(|error| format!("{seen:?}, then {error}"))?;
                seen.push(reply.status);
                if status.trim_end_matches('h') != reply.status.to_string() {
                    return Err(format!("{seen:?}: {}", reply.text()));
                }
            }
        }
    }
    if !closes {
        client.0.shutdown().await.ok();
    }
    let mut rest = Vec::new();
    // A reset is an end, too.
    client.0.read_to_end(&mut rest).await.ok();
    if !rest.is_empty() {
        return Err(format!("more was answered: {}", String::from_utf8_lossy(&rest)));
    }
    let expected: String = case.got.iter().map(|byte| char::from(*byte)).collect();
    loop {
        let got = without_request_id(&all.lock().unwrap());
        if got == expected {
            return Ok(());
        }
        if !expected.starts_with(&got) {
            return Err(format!("the instance got {got:?}\n    instead of {expected:?}"));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn assert_all(failed: &[String]) {
    assert!(failed.is_empty(), "{} cases:\n  {}", failed.len(), failed.join("\n  "));
}

#[tokio::test]
async fn what_clients_send_is_forwarded_or_refused_as_the_standards_say() {
    let all = Arc::new(Mutex::new(Vec::new()));
    let backend = recording(&all).await;
    let world = World::with_threads(1);
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    let mut failed = Vec::new();
    for case in cases("requests", REQUESTS_MIN) {
        let run = tokio::time::timeout(DEADLINE, run_request(&world, &all, &case)).await;
        if let Err(why) = run.unwrap_or_else(|_| Err("it does not come to an end".into())) {
            failed.push(format!("{}: {why}", case.name));
        }
    }
    assert_all(&failed);
}

/// What an instance does after its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Keeps,
    Closes,
    Resets,
}

async fn answering(bytes: Vec<u8>, then: Then) -> Backend {
    Backend::start(move |mut client: Client| {
        let bytes = bytes.clone();
        async move {
            while client.request().await.is_some() {
                client.0.write_all(&bytes).await.ok();
                match then {
                    Then::Keeps => {}
                    Then::Closes => return,
                    Then::Resets => {
                        socket2::SockRef::from(&client.0).set_linger(Some(Duration::ZERO)).ok();
                        return;
                    }
                }
            }
        }
    })
    .await
}

/// A connection that ends early is `cut`, and so is one that is reset.
async fn run_answer(case: &Case) -> Result<(), String> {
    let then = match case.outcome[0].as_str() {
        "keeps" => Then::Keeps,
        "closes" => Then::Closes,
        "resets" => Then::Resets,
        other => return Err(format!("an instance keeps, closes or resets, not {other}")),
    };
    let backend = answering(case.got.clone(), then).await;
    let world = World::with_threads(1);
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    let head_only = case.sent.starts_with(b"HEAD ");
    let mut client = world.connect().await;
    client.0.write_all(&case.sent).await.unwrap();
    let words = case.outcome[1..].iter();
    let (mut body, mut reused) = (Vec::new(), None);
    for word in words {
        match word.as_str() {
            "reused" => reused = Some(true),
            "fresh" => reused = Some(false),
            "cut" => match client.try_reply(head_only).await {
                Ok(reply) => return Err(format!("it looks whole: {}", reply.head)),
                Err(_) => continue,
            },
            status => {
                let reply = client.try_reply(head_only).await.map_err(|e| e.to_string())?;
                if status != reply.status.to_string() {
                    return Err(format!("{}{}", reply.head, reply.text()));
                }
                body = reply.body;
            }
        }
    }
    if let Some(expected) = case.body.as_ref().filter(|body| !body.is_empty())
        && *expected != body
    {
        return Err(format!("the body is {:?}", String::from_utf8_lossy(&body)));
    }
    if let Some(reused) = reused {
        let before = backend.connections.load(std::sync::atomic::Ordering::SeqCst);
        let mut other = world.connect().await;
        other.0.write_all(&case.sent).await.unwrap();
        other.try_reply(head_only).await.ok();
        let after = backend.connections.load(std::sync::atomic::Ordering::SeqCst);
        if (before == after) != reused {
            return Err(format!("{before} connections before, {after} after"));
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_instances_answer_is_passed_on_whole_or_cut() {
    let mut failed = Vec::new();
    for case in cases("answers", ANSWERS_MIN) {
        let run = tokio::time::timeout(DEADLINE, run_answer(&case)).await;
        if let Err(why) = run.unwrap_or_else(|_| Err("it does not come to an end".into())) {
            failed.push(format!("{}: {why}", case.name));
        }
    }
    assert_all(&failed);
}
