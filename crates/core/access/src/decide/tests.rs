//! Properties of the decision, over generated grants.

use model::people::PersonRole::{Developer, Operator, Owner, Viewer};
use model::record::Unknown;
use proptest::collection::btree_set;
use proptest::prelude::*;

use super::*;

type Teams = BTreeSet<(TeamName, Timestamp)>;

fn team(name: &str) -> Scope {
    Scope::Team { name: name.parse().unwrap(), created_at: Timestamp(1) }
}

fn application(name: &str, created_at: u64) -> Scope {
    Scope::Application { name: name.parse().unwrap(), created_at: Timestamp(created_at) }
}

fn grant(role: PersonRole, on: Scope) -> Grant {
    Grant { role, on }
}

fn scopes() -> impl Strategy<Value = Scope> {
    prop::sample::select(vec![
        Scope::Platform,
        team("red"),
        team("blue"),
        application("blog", 1),
        application("blog", 2),
        application("shop", 1),
    ])
}

fn grants() -> impl Strategy<Value = Grant> {
    (prop::sample::select(PersonRole::ALL.to_vec()), scopes())
        .prop_map(|(role, on)| Grant { role, on })
}

fn rights() -> impl Strategy<Value = Right> {
    prop::sample::select(Right::ALL.to_vec())
}

/// An application by name, with the teams that have it.
fn targets() -> impl Strategy<Value = Option<(&'static str, u64, Teams)>> {
    let team = prop::sample::select(vec!["red", "blue"]);
    let teams = btree_set(team.prop_map(|name| (name.parse().unwrap(), Timestamp(1))), 0..3);
    prop::option::of((prop::sample::select(vec!["blog", "shop"]), 1..3_u64, teams))
}

fn ask(principal: Principal<'_>, right: Right, target: &Option<(&str, u64, Teams)>) -> Decision {
    match target {
        None => decide(principal, right, AccessTarget::Platform),
        Some((name, created_at, teams)) => {
            let name = name.parse().unwrap();
            let created_at = Timestamp(*created_at);
            decide(principal, right, AccessTarget::Application { name: &name, created_at, teams })
        }
    }
}

proptest! {
    #[test]
    fn a_token_never_has_more_than_its_user(
        held in btree_set(grants(), 0..4), limit in grants(), right in rights(), target in targets()
    ) {
        let token = ask(Principal::Token(&held, &limit), right, &target);
        let user = ask(Principal::User(&held), right, &target);
        prop_assert!(token != Decision::Allowed || user == Decision::Allowed);
        prop_assert!(user != Decision::Hidden || token == Decision::Hidden);
    }

    #[test]
    fn a_limit_within_another_never_has_more(
        held in btree_set(grants(), 0..4), mut inner in grants(), outer in grants(),
        right in rights(), target in targets()
    ) {
        inner.role = inner.role.min(outer.role);
        if outer.on != Scope::Platform {
            inner.on = outer.on.clone();
        }
        prop_assert!(is_within(Some(&inner), Some(&outer)));
        let inner = ask(Principal::Token(&held, &inner), right, &target);
        let outer = ask(Principal::Token(&held, &outer), right, &target);
        prop_assert!(inner != Decision::Allowed || outer == Decision::Allowed);
    }

    #[test]
    fn an_invitation_is_good_for_a_login_alone(
        held in btree_set(grants(), 0..4), right in rights(), target in targets()
    ) {
        let allowed = |principal| ask(principal, right, &target) == Decision::Allowed;
        prop_assert_eq!(allowed(Principal::Invited), right == Right::LogIn);
        prop_assert!(right != Right::LogIn || !allowed(Principal::User(&held)));
    }

    #[test]
    fn revoking_never_adds_a_right(
        held in btree_set(grants(), 1..5), at in any::<prop::sample::Index>(),
        right in rights(), target in targets()
    ) {
        let mut less = held.clone();
        less.remove(at.get(&held.iter().cloned().collect::<Vec<_>>()));
        let less = ask(Principal::User(&less), right, &target);
        prop_assert!(
            less != Decision::Allowed || ask(Principal::User(&held), right, &target) == less
        );
    }

    #[test]
    fn a_higher_role_has_all_that_a_lower_one_has(
        on in scopes(), right in rights(), target in targets()
    ) {
        let of = |role| ask(Principal::User(&[grant(role, on.clone())].into()), right, &target);
        for (lower, higher) in PersonRole::ALL.iter().zip(&PersonRole::ALL[1..]) {
            prop_assert!(of(*lower) != Decision::Allowed || of(*higher) == Decision::Allowed);
        }
    }

    #[test]
    fn the_machine_alone_may_everything_and_nobody_else_its_own(
        held in btree_set(grants(), 0..4), right in rights(), target in targets()
    ) {
        prop_assert_eq!(ask(Principal::Machine, right, &target), Decision::Allowed);
        let alone = right.reach() == Reach::Machine;
        let decision = ask(Principal::User(&held), right, &target);
        let refused = Decision::Refused(Refusal::MachineAlone(right));
        prop_assert_eq!(alone, decision == refused);
    }

    #[test]
    fn what_is_hidden_looks_like_what_is_not_there(
        held in btree_set(grants(), 0..4), right in rights(), target in targets()
    ) {
        let decision = ask(Principal::User(&held), right, &target);
        let nothing = decide(Principal::User(&held), right, AccessTarget::Nothing);
        if right.reach() == Reach::Application {
            prop_assert_eq!(nothing, Decision::Hidden);
        }
        prop_assert!(decision != Decision::Hidden || nothing == Decision::Hidden);
    }

    #[test]
    fn some_owner_is_left_where_there_was_one(
        users in prop::collection::vec(btree_set(grants(), 0..3), 1..4),
        at in any::<prop::sample::Index>(), grants in btree_set(grants(), 0..3)
    ) {
        let owner = grant(Owner, Scope::Platform);
        let named: BTreeMap<UserName, User> = users
            .iter()
            .enumerate()
            .map(|(n, grants)| (format!("u{n}").parse().unwrap(), user(grants.clone())))
            .collect();
        let changed = at.index(users.len());
        let name = format!("u{changed}").parse().unwrap();
        let refused = loses_last_owner(&named, &name, &grants);
        let mut after = users.clone();
        after[changed] = grants;
        let had = users.iter().any(|grants| grants.contains(&owner));
        let has = after.iter().any(|grants| grants.contains(&owner));
        prop_assert_eq!(refused, had && !has);
    }
}

fn user(grants: BTreeSet<Grant>) -> User {
    let (created_at, created_by) = (Timestamp(1), "test".into());
    User { v: 1, created_at, created_by, grants, unknown: Unknown::new() }
}

#[test]
fn roles_do_what_their_names_say() {
    let none = Teams::new();
    let of = |role: PersonRole, on: Scope, right: Right| {
        let name = "blog".parse().unwrap();
        let created_at = Timestamp(1);
        let target = AccessTarget::Application { name: &name, created_at, teams: &none };
        decide(Principal::User(&[grant(role, on)].into()), right, target)
    };
    let blog = || application("blog", 1);
    assert_eq!(of(Viewer, blog(), Right::SeeApplication), Decision::Allowed);
    let refused = Decision::Refused(Refusal::Role(Right::Push));
    assert_eq!(of(Viewer, blog(), Right::Push), refused);
    assert_eq!(of(Developer, blog(), Right::Push), Decision::Allowed);
    assert_eq!(of(Developer, application("blog", 2), Right::Push), Decision::Hidden);
    assert_eq!(of(Owner, team("red"), Right::Push), Decision::Hidden);
    assert_eq!(of(Operator, Scope::Platform, Right::DestroyApplication), Decision::Allowed);
    let people = Decision::Refused(Refusal::Role(Right::ManagePeople));
    assert_eq!(of(Operator, Scope::Platform, Right::ManagePeople), people);
    assert_eq!(of(Owner, blog(), Right::ManagePeople), people);
}

#[test]
fn a_new_application_goes_to_the_team_of_whoever_makes_it() {
    let names = |principal| -> Vec<String> {
        teams_for_new(principal).into_iter().map(|(name, _)| name.to_string()).collect()
    };
    let held: BTreeSet<Grant> = [grant(Developer, team("red")), grant(Viewer, team("blue"))].into();
    assert_eq!(names(Principal::User(&held)), ["red"]);
    let everywhere: BTreeSet<Grant> = [grant(Developer, Scope::Platform)].into();
    assert!(names(Principal::User(&everywhere)).is_empty());
    let limit = grant(Developer, team("blue"));
    assert_eq!(names(Principal::Token(&everywhere, &limit)), ["blue"]);
    assert!(names(Principal::Token(&held, &limit)).is_empty());
}
