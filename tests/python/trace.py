"""Reads a trace with Perfetto's own definitions, believes nothing, and prints its tracks as JSON."""

import json
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

BEGIN, END, INSTANT, COUNTER = (getattr(proto.TrackEvent, f"TYPE_{name}") for name in ("SLICE_BEGIN", "SLICE_END", "INSTANT", "COUNTER"))


def known(message):
    """Nothing in it that the definitions do not have."""
    clone = type(message)()
    clone.CopyFrom(message)
    clone.DiscardUnknownFields()
    return clone.SerializeToString() == message.SerializeToString()


trace = proto.Trace()
with open(sys.argv[1], "rb") as file:
    trace.ParseFromString(file.read())
assert known(trace), "fields that Perfetto does not know"

tracks, names, facts, opened, latest, flows = {}, {}, {}, {}, {}, {}
for number, packet in enumerate(trace.packet):
    assert packet.trusted_packet_sequence_id == 1
    assert packet.sequence_flags == (1 if number == 0 else 2), "the first packet clears the state, the others need it"
    if number == 0:
        assert packet.trace_packet_defaults.timestamp_clock_id == 3
        assert sorted(clock.clock_id for clock in packet.clock_snapshot.clocks) == [1, 3, 6]
    names.update({name.iid: name.name for name in packet.interned_data.event_names})
    facts.update({name.iid: name.name for name in packet.interned_data.debug_annotation_names})
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        assert track.uuid not in tracks and (not track.parent_uuid or track.parent_uuid in tracks)
        group = tracks[track.parent_uuid]["name"] if track.parent_uuid else None
        tracks[track.uuid] = {"group": group, "name": track.name, "slices": {}, "marks": {}, "counter": 0, "depth": 0}
    if packet.HasField("track_event"):
        event, track = packet.track_event, tracks[packet.track_event.track_uuid]
        assert latest.get(event.track_uuid, 0) <= packet.timestamp, "time goes on within a track"
        latest[event.track_uuid] = packet.timestamp
        stack = opened.setdefault(event.track_uuid, [])
        assert all(fact.name_iid in facts for fact in event.debug_annotations)
        for flow in event.flow_ids:
            flows.setdefault(flow, []).append(track["group"])
        if event.type == BEGIN:
            stack.append(names[event.name_iid])
            track["depth"] = max(track["depth"], len(stack))
        elif event.type == END:
            name = stack.pop()
            track["slices"][name] = track["slices"].get(name, 0) + 1
        elif event.type == INSTANT:
            name = names[event.name_iid]
            track["marks"][name] = track["marks"].get(name, 0) + 1
        else:
            assert event.type == COUNTER and event.counter_value >= 0
            track["counter"] += 1
assert not any(opened.values()), "what begins ends"
joined = sum("requests" in groups and "device queues" in groups for groups in flows.values())
json.dump({"tracks": [track for track in tracks.values() if track["group"]], "joined": joined}, sys.stdout)
