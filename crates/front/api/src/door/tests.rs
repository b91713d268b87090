//! Tests of the door that need no request.

use std::collections::{BTreeMap, BTreeSet};

use access_core::CUT_OFF_AFTER;
use model::Timestamp;
use model::people::{Grant, PersonRole, Scope, Token};
use model::record::{RECORD_VERSION, Unknown};
use model::value::ContentHash;

use super::*;
use crate::caller::Person;
use crate::tests::fixture::Fixture;

fn caller(name: &str, role: PersonRole) -> Caller {
    let name: UserName = name.parse().unwrap();
    let token = Token {
        v: RECORD_VERSION,
        name: "test".parse().unwrap(),
        user: name.clone(),
        user_created_at: Timestamp(1),
        created_at: Timestamp(1),
        expires_at: Timestamp(u64::MAX),
        limit: None,
        revoked_at: None,
        invites: None,
        unknown: Unknown::new(),
    };
    let grants = BTreeSet::from([Grant { role, on: Scope::Platform }]);
    let person = Person { hash: ContentHash([1; 32]), name, grants, token, teams: BTreeMap::new() };
    Caller(Arc::new(Passed::Person(Box::new(person))))
}

async fn door() -> (Fixture, Door) {
    let api = Fixture::start().await;
    let context = &api.context;
    let (store, node) = (context.store.clone(), context.node.clone());
    let door = Door::new(store, node, context.clock, context.control.clone());
    (api, door)
}

#[tokio::test]
async fn a_node_that_was_cut_off_takes_changes_of_owners_alone() {
    let (_api, door) = door().await;
    let (developer, owner) =
        (caller("ana", PersonRole::Developer), caller("bob", PersonRole::Owner));
    let machine = Caller(Arc::new(Passed::Machine { uid: 0 }));
    let refused = |caller: &Caller| door.check_touch(caller).err().map(|p| p.body().code);
    assert_eq!(refused(&developer), None);
    let long_ago = Timestamp(door.clock.now().0 - CUT_OFF_AFTER.as_millis() as u64);
    locked(&door.touch).note(false, long_ago);
    assert_eq!(refused(&developer).as_deref(), Some("cut_off"));
    assert_eq!([refused(&owner), refused(&machine)], [None, None]);
    locked(&door.touch).note(true, door.clock.now());
    assert_eq!(refused(&developer), None);
}

#[tokio::test]
async fn a_user_who_changes_without_end_has_to_wait() {
    let (_api, door) = door().await;
    let ana = caller("ana", PersonRole::Developer);
    let refused = (0..=CHANGES_AT_ONCE).filter_map(|_| door.count_change(&ana).err()).next();
    let response = refused.expect("an end").into_response();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(response.headers().contains_key(header::RETRY_AFTER));
    // It is nobody else's concern.
    assert!(door.count_change(&caller("bob", PersonRole::Developer)).is_ok());
    let machine = Caller(Arc::new(Passed::Machine { uid: 0 }));
    assert!((0..2 * CHANGES_AT_ONCE).all(|_| door.count_change(&machine).is_ok()));
}
