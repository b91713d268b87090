//! Conformance and request smuggling: each file in `corpus/` is one case, as its README says.

mod case;
mod instance;
mod peers;

use std::sync::atomic::Ordering;
use std::time::Duration;

use model::InstanceState::Ready;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use self::case::{Case, Folder};
use self::instance::{Answer, Instance, Then};
use super::world::{DEADLINE, World};

/// Bytes that the client of a case writes at once.
const CASE_BYTES_MAX: usize = 1 << 20;

/// Replaces the request's number, which is another each time.
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

async fn run_request(world: &World, instance: &Instance, case: &Case) -> Result<(), String> {
    instance.forget();
    let mut client = world.connect().await;
    assert!(case.sent.len() <= CASE_BYTES_MAX);
    // A client that is refused may be cut off while it still sends.
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
        let got = without_request_id(&instance.got());
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

async fn in_front_of(instance: &Instance) -> World {
    let world = World::with_threads(1);
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, instance.backend.port)]);
    world.routed().await;
    world
}

#[tokio::test]
async fn what_clients_send_is_forwarded_or_refused_as_the_standards_say() {
    let instance = Instance::start(Answer::Hello).await;
    let world = in_front_of(&instance).await;
    let mut failed = Vec::new();
    for case in Folder::Requests.cases() {
        let run = tokio::time::timeout(DEADLINE, run_request(&world, &instance, &case)).await;
        if let Err(why) = run.unwrap_or_else(|_| Err("it does not come to an end".into())) {
            failed.push(format!("{}: {why}", case.name));
        }
    }
    assert_all(&failed);
}

/// Runs a case of an answer. A connection that ends early is `cut`, and so is one that is reset.
async fn run_answer(case: &Case) -> Result<(), String> {
    let then = Then::named(&case.outcome[0]);
    let instance = Instance::start(Answer::These(case.got.clone(), then)).await;
    let world = in_front_of(&instance).await;
    let connections = &instance.backend.connections;
    let head_only = case.is_head();
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
        let before = connections.load(Ordering::SeqCst);
        let mut other = world.connect().await;
        other.0.write_all(&case.sent).await.unwrap();
        other.try_reply(head_only).await.ok();
        let after = connections.load(Ordering::SeqCst);
        if (before == after) != reused {
            return Err(format!("{before} connections before, {after} after"));
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_instances_answer_is_passed_on_whole_or_cut() {
    let mut failed = Vec::new();
    for case in Folder::Answers.cases() {
        let run = tokio::time::timeout(DEADLINE, run_answer(&case)).await;
        if let Err(why) = run.unwrap_or_else(|_| Err("it does not come to an end".into())) {
            failed.push(format!("{}: {why}", case.name));
        }
    }
    assert_all(&failed);
}
