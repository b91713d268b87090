//! The walk: every route of the table with every role and every state of a token. What is expected
//! follows from the lines of docs/access.md, which are those of the table.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use access_core::{Reach, Right, TokenText};
use model::people::{Grant, PersonRole, Scope, Team, Token, User};
use model::record::Unknown;
use model::{ApplicationName, ApplicationSpec, Timestamp, TypedKey};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::fixture::Fixture;
use crate::table::{Recording, TableRow};
use crate::{node_table, records, shared};

/// The time limit of one answer: generous, since machines that run tests are busy.
const DEADLINE: Duration = Duration::from_secs(60);
const MADE: Timestamp = Timestamp(1_000);

fn rows(api: &Fixture) -> Vec<TableRow> {
    let api = shared(api.context.clone());
    node_table(&api, crate::door(&api)).rows
}

/// Returns the path with names in place of its parameters.
fn filled(row: &TableRow) -> String {
    let path = row.path.replace("{app}", "blog").replace("{node}", "n1").replace("{id}", "v1.n1");
    path.replace("{user}", "nobody").replace("{team}", "nothing").replace("{name}", "nothing")
}

/// Asks without a body; returns the status, and the code of a problem.
async fn ask(socket: &Path, row: &TableRow, token: Option<&str>) -> (u16, String) {
    let asked = async {
        let mut stream = UnixStream::connect(socket).await.unwrap();
        let token = token.map_or(String::new(), |text| format!("Authorization: Bearer {text}\r\n"));
        let (method, path) = (row.method, filled(row));
        let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n");
        stream
            .write_all(format!("{head}{token}Connection: close\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let read = stream.read(&mut buffer).await.unwrap();
            answer.extend_from_slice(&buffer[..read]);
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                assert!(read > 0, "{method} {path} was not answered");
                continue;
            };
            let status = head.split(' ').nth(1).unwrap().parse().unwrap();
            if !head.contains("problem+json") {
                return (status, String::new());
            }
            if read == 0 {
                let problem: Value = serde_json::from_str(body).unwrap();
                return (status, problem["code"].as_str().unwrap().to_owned());
            }
        }
    };
    tokio::time::timeout(DEADLINE, asked).await.expect("an answer in time")
}

fn application(name: &str) -> Scope {
    Scope::Application { name: name.parse().unwrap(), created_at: MADE }
}

fn red() -> Scope {
    Scope::Team { name: "red".parse().unwrap(), created_at: MADE }
}

/// Writes two applications, of which the first is of team `red`.
async fn make_applications(api: &Fixture) {
    for name in ["blog", "other"] {
        let name: ApplicationName = name.parse().unwrap();
        let over = TypedKey::Destroyed(name.clone(), MADE).key();
        api.store.delete(over).await.unwrap();
        let spec = ApplicationSpec::new(MADE);
        records::write(&*api.store, TypedKey::Spec(name), &spec).await.unwrap();
    }
    let team = Team {
        v: 1,
        created_at: MADE,
        created_by: "test".into(),
        applications: [("blog".parse().unwrap(), MADE)].into(),
        limits: Default::default(),
        unknown: Unknown::new(),
    };
    records::write(&*api.store, TypedKey::Team("red".parse().unwrap()), &team).await.unwrap();
}

/// Writes a user with these grants and a token of theirs; returns its text.
async fn make_token(
    api: &Fixture,
    number: u8,
    grants: &[Grant],
    change: impl FnOnce(&mut Token),
) -> String {
    let user = User {
        v: 1,
        created_at: MADE,
        created_by: "test".into(),
        grants: grants.iter().cloned().collect(),
        unknown: Unknown::new(),
    };
    let name: model::UserName = format!("user{number}").parse().unwrap();
    records::write(&*api.store, TypedKey::User(name.clone()), &user).await.unwrap();
    let text = TokenText::from_random(&[number; 64]).unwrap();
    let mut token = Token {
        v: 1,
        name: "test".parse().unwrap(),
        user: name,
        user_created_at: MADE,
        created_at: MADE,
        expires_at: Timestamp(u64::MAX),
        limit: None,
        revoked_at: None,
        invites: None,
        unknown: Unknown::new(),
    };
    change(&mut token);
    let key = TypedKey::Token(text.hash());
    records::write(&*api.store, key, &token).await.unwrap();
    text.as_str().to_owned()
}

/// Returns the refusal that is expected of a role held there; `None` if it is let through.
fn refusal(role: Option<(PersonRole, &Scope)>, right: Right) -> Option<(u16, &'static str)> {
    let enough = |counts: &[Scope]| match role {
        Some((role, on)) if counts.contains(on) => Some(role >= right.role_min()),
        _ => None,
    };
    let no_right = Some((403, "no_right"));
    match right.reach() {
        Reach::Anyone => None,
        Reach::Machine => Some((403, "machine_alone")),
        Reach::Invited => Some((403, "not_invited")),
        Reach::Platform if enough(&[Scope::Platform]) == Some(true) => None,
        Reach::NewApplication if enough(&[Scope::Platform, red()]) == Some(true) => None,
        Reach::Platform | Reach::NewApplication => no_right,
        Reach::Application => match enough(&[Scope::Platform, red(), application("blog")]) {
            Some(true) => None,
            Some(false) => no_right,
            None => Some((404, "no_application")),
        },
    }
}

/// Walks the table with one token, and puts right what was changed on the way.
async fn walk(
    api: &Fixture,
    token: Option<&str>,
    who: &str,
    expected: impl Fn(Right) -> Option<(u16, &'static str)>,
) {
    let socket = api.layout.api_socket();
    for row in rows(api) {
        let (status, code) = ask(&socket, &row, token).await;
        let asked = format!("{} {} as {who}: {status} {code}", row.method, row.path);
        match expected(row.right) {
            Some(refused) => assert_eq!((status, code.as_str()), refused, "{asked}"),
            None => {
                let passed = !matches!(status, 401 | 403) && code != "no_application";
                assert!(passed && code != "no_such_path", "{asked}");
                if row.method != "GET" {
                    make_applications(api).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn every_route_asks_for_its_right_of_every_role() {
    let api = Fixture::start().await;
    make_applications(&api).await;
    walk(&api, None, "the machine's owner", |_| None).await;
    let nobody = make_token(&api, 1, &[], |_| {}).await;
    walk(&api, Some(&nobody), "a user without a role", |right| refusal(None, right)).await;
    let mut number = 2;
    for on in [Scope::Platform, red(), application("blog"), application("other")] {
        for role in PersonRole::ALL {
            let grant = Grant { role, on: on.clone() };
            let token = make_token(&api, number, std::slice::from_ref(&grant), |_| {}).await;
            let expected = |right| refusal(Some((role, &on)), right);
            walk(&api, Some(&token), &grant.to_string(), expected).await;
            number += 1;
        }
    }
}

#[tokio::test]
async fn every_route_keeps_a_token_to_its_limit() {
    let api = Fixture::start().await;
    make_applications(&api).await;
    let owner = Grant { role: PersonRole::Owner, on: Scope::Platform };
    for (number, on) in [application("blog"), application("other"), red()].into_iter().enumerate() {
        let limit = Grant { role: PersonRole::Developer, on: on.clone() };
        let change = |token: &mut Token| token.limit = Some(limit.clone());
        let number = u8::try_from(number).unwrap();
        let token = make_token(&api, number, std::slice::from_ref(&owner), change).await;
        walk(&api, Some(&token), &format!("an owner limited to {limit}"), |right| {
            match refusal(Some((PersonRole::Developer, &on)), right) {
                Some((403, "no_right")) => Some((403, "token_limited")),
                other => other,
            }
        })
        .await;
    }
}

#[tokio::test]
async fn every_route_refuses_a_token_that_is_not_good() {
    let api = Fixture::start().await;
    make_applications(&api).await;
    let owner = [Grant { role: PersonRole::Owner, on: Scope::Platform }];
    let expired = make_token(&api, 1, &owner, |token| token.expires_at = MADE).await;
    let revoked = make_token(&api, 2, &owner, |token| token.revoked_at = Some(MADE)).await;
    let of_an_earlier_user =
        make_token(&api, 3, &owner, |token| token.user_created_at = Timestamp(1)).await;
    let unknown = TokenText::from_random(&[9; 64]).unwrap();
    let good = make_token(&api, 4, &owner, |_| {}).await;
    let (mistyped, broken) = (format!("{}0", &good[..good.len() - 1]), good.replace('4', "4 4"));
    for (token, code) in [
        (expired.as_str(), "token_expired"),
        (&revoked, "token_revoked"),
        (&of_an_earlier_user, "token_revoked"),
        (unknown.as_str(), "token_unknown"),
        (&mistyped, "token_malformed"),
        (&broken, "token_malformed"),
        ("", "token_malformed"),
    ] {
        walk(&api, Some(token), code, |_| Some((401, code))).await;
    }
}

#[tokio::test]
async fn every_change_is_recorded_but_those_that_must_not_wait_for_the_store() {
    let api = Fixture::start().await;
    make_applications(&api).await;
    let rows = rows(&api);
    let is_recorded = |row: &&TableRow| row.recording == Recording::Change;
    let unrecorded: Vec<String> = rows
        .iter()
        .filter(|row| row.method != "GET" && !is_recorded(row))
        .map(|row| format!("{} {}", row.method, row.path))
        .collect();
    assert_eq!(
        unrecorded,
        [
            "PUT /v1/store/value",
            "DELETE /v1/store/value",
            "POST /v1/shutdown",
            "POST /v1/cluster/sync",
            // It asks an authority what its terms are, and changes nothing.
            "POST /v1/authority/terms",
            // It asks what a push need not send.
            "POST /v1/apps/{app}/sources/known",
            "POST /v1/fail-points/{name}",
        ]
    );
    walk(&api, None, "the machine's owner", |_| None).await;
    let expected: BTreeSet<(String, String)> =
        rows.iter().filter(is_recorded).map(|row| (row.method.to_owned(), filled(row))).collect();
    let audit: Vec<api_types::people::AuditRow> =
        api.client.get("/v1/audit?limit=1000").await.unwrap();
    assert!(audit.iter().all(|row| row.outcome != "attempted"), "{audit:?}");
    let recorded: BTreeSet<(String, String)> =
        audit.into_iter().map(|row| (row.method, row.path)).collect();
    assert_eq!(recorded, expected);
}

/// Checks that people read the table that the program has.
#[tokio::test]
async fn the_table_of_rights_is_documented() {
    let api = Fixture::start().await;
    let mut expected = String::new();
    for row in rows(&api) {
        let role = row.right.role_min();
        let who = match row.right.reach() {
            Reach::Anyone => "everybody".to_owned(),
            Reach::Invited => "who has an invitation".to_owned(),
            Reach::Application => format!("{role} of the application"),
            Reach::NewApplication => format!("{role} of the platform or a team"),
            Reach::Platform => format!("{role} of the platform"),
            Reach::Machine => "the machine's owner alone".to_owned(),
        };
        let (method, path, right) = (row.method, row.path, row.right.words());
        writeln!(expected, "| `{method} {path}` | {right} | {who} |").unwrap();
    }
    let documented = include_str!("../../../../../docs/access.md");
    assert!(documented.contains(&expected), "docs/access.md is to have these lines:\n{expected}");
}
