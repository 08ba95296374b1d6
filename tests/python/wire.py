"""Messages of protocol buffers from tables of their fields, for protocols that the tests speak themselves."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

STRING, INT32, BOOL, TEXTS = "string", "int32", "bool", "strings"


def messages(package, table):
    """Classes of the messages, by name. A field has a name, a number and a type: one of those above, the name of a
    message, or a list with the name of a message for a repeated one."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    kinds = {STRING: 9, TEXTS: 9, INT32: 5, BOOL: 8}
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            is_list = kind == TEXTS or isinstance(kind, list)
            one = message.field.add(name=field, number=number, label=3 if is_list else 1)
            if isinstance(kind, list) or kind in table:
                one.type = 11
                one.type_name = f".{package}.{kind[0] if isinstance(kind, list) else kind}"
            else:
                one.type = kinds[kind]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in table}
